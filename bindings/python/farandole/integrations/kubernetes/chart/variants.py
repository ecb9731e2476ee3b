"""Runs the generator with placeholders: once for each option that becomes a value, and once for each pair of them."""

import itertools
from dataclasses import dataclass

from .. import generator, reading
from ..errors import WrongCombination
from ..reading import ELASTIC
from . import settings

SINGLE, ELASTIC_FLAG = "nnodes == 1", "minNodes"


@dataclass(frozen=True, eq=False)
class Flag:
    """One thing that is on or off in a variant. `condition`: when the values of a release turn it on."""

    name: str
    condition: str
    words: tuple = ()
    setting: object = None


@dataclass
class Variant:
    flags: frozenset
    numbers: dict  # the amounts of this variant, for numbers that are derived from them
    documents: list


class Variants:
    """The variants of one kind, the settings that the kind has, and the pairs of them that it refuses."""

    def __init__(self, kind, fixed):
        self.kind, self.fixed = kind, fixed
        self.always = {ELASTIC_FLAG} if kind == "deployment" else set()
        self.flags, self.made, self.refused = [], [], []
        self.amounts = []
        for amount in settings.AMOUNTS:
            if self._accepts(amount):
                self.amounts.append(amount)
        single = Flag(SINGLE, "eq (int $.Values.nnodes) 1")
        elastic = Flag(ELASTIC_FLAG, "$.Values.minNodes")
        optional = [Flag(f"{one.key} {one.equals}", one.condition, one.words, one) for one in settings.OPTIONS]
        first = [single, *([elastic] if kind in ELASTIC and kind != "deployment" else [])]
        self._run(first, optional)

    def _accepts(self, amount):
        try:
            self._documents(frozenset(), [word for one in [*self.amounts, amount] for word in one.words])
        except WrongCombination:
            return False
        return True

    def _documents(self, names, words):
        nodes, least = (1, 1) if SINGLE in names else (settings.NODES, settings.LEAST)
        size = f"{least}:{nodes}" if ELASTIC_FLAG in names | self.always else str(nodes)
        line = [self.kind, "--name", settings.NAME, "--nnodes", size, *words, *self.fixed, *settings.COMMAND.words]
        documents = generator.documents_of(reading.read(line, settings.NAMESPACE))
        return {"nodes": nodes, "least": least}, documents

    def _variant(self, flags):
        """One run of the generator. WrongCombination if it refuses these flags."""
        names = frozenset(flag.name for flag in flags)
        words = [word for one in self.amounts for word in one.words]
        numbers = {"grace": settings.GRACE}
        if any(flag.setting and flag.setting.key == "spot" for flag in flags):
            numbers["grace"] = settings.GRACE_ON_SPOT
            words = [str(settings.GRACE_ON_SPOT) if word == str(settings.GRACE) else word for word in words]
        size, documents = self._documents(names, [*words, *(word for flag in flags for word in flag.words)])
        return Variant(names, {**numbers, **size}, documents)

    def _run(self, first, optional):
        """Fills flags, made and refused. An option that needs another one is only turned on together with it."""
        self.made.append(self._variant(()))
        alone, errors = set(), {}
        for flag in first + optional:
            try:
                self.made.append(self._variant((flag,)))
                alone.add(flag)
            except WrongCombination as error:
                errors[flag] = str(error)
        needs = {flag: self._needed(flag, alone) for flag in errors}
        self.flags = [flag for flag in first + optional if flag in alone or needs.get(flag)]
        self.refused += [
            (f"and ({flag.condition}) (not ({needs[flag].condition}))", errors[flag]) for flag in errors if needs[flag]
        ]
        for one, other in itertools.combinations(self.flags, 2):
            if one.setting and other.setting and one.setting.key == other.setting.key:
                continue
            needed = [needs[flag] for flag in (one, other) if needs.get(flag)]
            chosen = tuple(dict.fromkeys([one, other, *needed]))
            try:
                self.made.append(self._variant(chosen))
            except WrongCombination as error:
                self.refused.append((f"and ({one.condition}) ({other.condition})", str(error)))

    def _needed(self, flag, alone):
        for other in sorted(alone, key=lambda one: one.name):
            try:
                self._variant((flag, other))
            except WrongCombination:
                continue
            return other
        return None
