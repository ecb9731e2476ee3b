"""Merges the variants of a manifest into one template of Helm."""

import graphlib
import itertools
import json
import re

from ..document import Map, comment, plain, scalar
from ..errors import WrongCombination
from ..names import RESERVED
from . import settings
from .settings import COUNTED, DERIVED, EXPORTED, METRICS


class Merge:
    """One template of all variants. A set of variants is a number with one bit for each."""

    def __init__(self, variants):
        self.variants = variants
        self.everything = (1 << len(variants.made)) - 1
        self.loops = {f.setting.unit: f for f in variants.flags if f.setting and f.setting.unit}
        self.fields = {
            settings.NAME: "$.Release.Name",
            settings.NAMESPACE: "$.Release.Namespace",
            "@n@": "$n",
            settings.COMMAND.unit: f'include "{settings.WORDS}" $',
        }
        self.fields.update({key: of[0] for key, of in DERIVED.items()})
        for setting in [*variants.amounts, *(f.setting for f in variants.flags if f.setting)]:
            self.fields.update({key: value for key, value in setting.fields.items() if key not in DERIVED})
        words = sorted((str(key) for key in self.fields), key=len, reverse=True)
        self.tokens = re.compile(
            "|".join(rf"(?<!\d){word}(?!\d)" if word.isdigit() else re.escape(word) for word in words)
        )
        self.with_flag = [(f, self._bits(lambda v, f=f: f.name in v.flags)) for f in variants.flags]
        self._conditions = {}

    def _bits(self, chosen):
        return sum(1 << i for i, variant in enumerate(self.variants.made) if chosen(variant))

    # --- conditions -----------------------------------------------------------------------------------------------

    def condition(self, wanted, among):
        """The shortest expression that holds in the variants `wanted` of those `among`; None if it holds in all."""
        if wanted == among:
            return None
        if (wanted, among) not in self._conditions:
            self._conditions[wanted, among] = self._search(wanted, among)
        return self._conditions[wanted, among]

    def _search(self, wanted, among):
        yes = [(f"({flag.condition})", bits) for flag, bits in self.with_flag]
        literals = yes + [(f"(not {text})", self.everything & ~bits) for text, bits in yes]
        for text, bits in literals:
            if bits & among == wanted:
                return text[1:-1]
        for size in (2, 3, 4):
            holds = [(text, bits) for text, bits in literals if wanted & ~bits == 0]
            parts = [(text, bits) for text, bits in literals if bits & among & ~wanted == 0 and bits & wanted]
            for operator, chosen in (("and", holds), ("or", parts)):
                for several in itertools.combinations(chosen, size):
                    bits = several[0][1]
                    for _, more in several[1:]:
                        bits = bits & more if operator == "and" else bits | more
                    if bits & among == wanted:
                        return " ".join([operator, *(text for text, _ in several)])
        raise AssertionError("no condition distinguishes these manifests; please report the command")

    # --- values ---------------------------------------------------------------------------------------------------

    def _actual(self, value, variant):
        """What a placeholder's number is in a variant of smaller amounts."""

        def number(found):
            of = DERIVED.get(int(found[0])) if found[0].isdigit() else None
            return str(of[1](variant.numbers)) if of else found[0]

        if isinstance(value, bool) or not isinstance(value, (int, str)):
            return value
        text = self.tokens.sub(number, str(value))
        return int(text) if isinstance(value, int) else text

    def _common(self, nodes):
        """The scalar that stands for those of all variants, if there is one."""
        for value in sorted({json.dumps(plain(node)) for node in nodes.values()}, reverse=True):
            value = json.loads(value)
            if isinstance(value, (dict, list)):
                continue
            if all(self._actual(value, self.variants.made[i]) == node for i, node in nodes.items()):
                return value
        return None

    def text(self, value, fields=None):
        """A scalar as YAML, with the expressions of its placeholders."""
        fields = {**self.fields, **(fields or {})}
        if "{{" in str(value):
            raise WrongCombination(f"'{value}' contains {{{{, which Helm would evaluate; leave it out")
        if isinstance(value, int) and not isinstance(value, bool) and value in fields:
            return f"{{{{ {fields[value]} }}}}"
        if not isinstance(value, str) or not self.tokens.search(value):
            return scalar(value) if not isinstance(value, str) or "\n" not in value else json.dumps(value)
        if value in fields and not value.isdigit():
            return f"{{{{ {fields[value]} | toJson }}}}"

        def expression(found):
            key = int(found[0]) if found[0].isdigit() else found[0]
            return f"{{{{ {fields[key]} }}}}"

        return '"' + self.tokens.sub(expression, json.dumps(value, ensure_ascii=False)[1:-1]) + '"'

    def note(self, notes, indent):
        """A comment that all variants agree about."""
        if len(notes) != 1 or None in notes:
            return []
        (text,) = notes
        return [re.sub(r"\d{4,}|sentinel-[a-z]+", self._noted, line) for line in comment(text, indent)]

    def _noted(self, found):
        key = int(found[0]) if found[0].isdigit() else found[0]
        return f"{{{{ {self.fields[key]} }}}}" if key in self.fields else found[0]

    # --- lines ----------------------------------------------------------------------------------------------------

    def _wrap(self, lines, bits, among, loop, indent):
        """The lines of a part that only the variants `bits` of `among` have. `loop`: the flag that repeats it."""
        pad = " " * indent
        if loop:
            on = next(mask for flag, mask in self.with_flag if flag is loop)
            condition = self.condition(bits, among & on)
            lines = [f"{pad}{{{{- {loop.setting.loop} }}}}", *lines, f"{pad}{{{{- end }}}}"]
        else:
            condition = self.condition(bits, among)
        if condition:
            lines = [f"{pad}{{{{- if {condition} }}}}", *lines, f"{pad}{{{{- end }}}}"]
        return lines

    def mapping(self, nodes, indent, fields=None):
        """`nodes`: the mapping of each variant that has it."""
        among = sum(1 << i for i in nodes)
        lines, keys = [], _order([list(node) for node in nodes.values()], keeps=False)
        added = next((self.loops[key].setting.key for key in keys if key in self.loops), None)
        for key in keys:
            having = {i: node[key] for i, node in nodes.items() if key in node}
            notes = {getattr(nodes[i], "notes", {}).get(key) for i in having}
            loop = self.loops.get(key)
            body = self.note(notes, indent) + self.entry(key, having, indent, fields)
            if added and not loop and key not in RESERVED:
                body = _unless_added(key, added, body, indent)
            lines += self._wrap(body, sum(1 << i for i in having), among, loop, indent)
        return lines

    def entry(self, key, nodes, indent, fields=None):
        start = " " * indent + (f"{{{{ {self.fields[key]} | quote }}}}" if key in self.fields else scalar(key)) + ":"
        values = list(nodes.values())
        if all(isinstance(value, dict) and value for value in values):
            return [start, *self.mapping(nodes, indent + 2, fields)]
        if all(isinstance(value, list) and value for value in values):
            return [start, *self.sequence(nodes, indent + 2, fields)]
        common = self._common(nodes)
        if common is not None:
            return [f"{start} {self.text(common, fields)}"]
        return self._choice(start, nodes, indent, fields)

    def _choice(self, start, nodes, indent, fields):
        """if, else if, else: one for each value that variants have."""
        groups = {}
        for i, node in nodes.items():
            groups.setdefault(json.dumps(plain(node), sort_keys=True), {})[i] = node
        among, lines, pad = sum(1 << i for i in nodes), [], " " * indent
        ordered = sorted(groups.values(), key=len)
        for number, group in enumerate(ordered):
            bits = sum(1 << i for i in group)
            word = (
                "else"
                if number == len(ordered) - 1
                else ("else if " if number else "if ") + self.condition(bits, among)
            )
            value = next(iter(group.values()))
            shown = json.dumps(value) if isinstance(value, (dict, list)) else self.text(value, fields)
            lines += [f"{pad}{{{{- {word} }}}}", f"{start} {shown}"]
            among &= ~bits
        return [*lines, f"{pad}{{{{- end }}}}"] if len(ordered) > 1 else [lines[1]]

    def sequence(self, nodes, indent, fields=None):
        nodes = {i: _counted(node) for i, node in nodes.items()}
        among = sum(1 << i for i in nodes)
        rows = {i: _rows(node) for i, node in nodes.items()}
        lines, keys = [], _order([[name for name, _ in row] for row in rows.values()])
        for key in keys:
            having = {i: item for i, row in rows.items() for name, item in row if name == key}
            refusal = [_refused_variable(key, indent)] if EXPORTED in keys and key != EXPORTED else []
            lines += self._item(having, among, indent, fields, refusal)
        return lines

    def _item(self, having, among, indent, fields, refusal):
        pad, first = " " * indent, next(iter(having.values()))
        bits = sum(1 << i for i in having)
        name = _unit(first)
        loop = self.loops.get(name)
        notes = {getattr(item, "why", None) for item in having.values()}
        if name == settings.TOLERATION:
            body = [f"{pad}- {{{{ toJson $item }}}}"]
        elif first == {"name": EXPORTED}:
            body = [f'{pad}- "-x"', f"{pad}- {{{{ $key | quote }}}}"]
        elif isinstance(first, dict):
            if name == COUNTED:
                fields = {METRICS: "add (int $.Values.metricsPort) $n"}
            body = _dashed(self.mapping(having, indent + 2, fields), indent)
        else:
            body = [f"{pad}- {self.text(self._common(having), {**(fields or {}), **settings.COMMAND.fields})}"]
        if name == COUNTED or first == settings.COMMAND.unit:
            over = "$n := until (int $.Values.nprocPerNode)" if name == COUNTED else "$item := $.Values.command"
            body = [f"{pad}{{{{- range {over} }}}}", *body, f"{pad}{{{{- end }}}}"]
        return self._wrap([*refusal, *self.note(notes, indent), *body], bits, among, loop, indent)

    def documents(self):
        """The whole template: the documents of all variants, in their order."""
        rows = {i: _rows(variant.documents) for i, variant in enumerate(self.variants.made)}
        lines = []
        for key in _order([[name for name, _ in row] for row in rows.values()]):
            having = {i: one for i, row in rows.items() for name, one in row if name == key}
            bits = sum(1 << i for i in having)
            notes = {getattr(one, "why", None) for one in having.values()}
            loop = self.loops.get(next(iter(having.values()))["metadata"]["name"])
            body = ["---", *self.note(notes, 0), *self.mapping(having, 0)]
            lines += self._wrap(body, bits, self.everything, loop, 0)
        return lines


def _unless_added(key, added, body, indent):
    """An entry that a label or annotation of the user replaces. A node has one value of a label, so that two wishes for
    it are refused."""
    pad, has = " " * indent, f"hasKey $.Values.{added} {json.dumps(key)}"
    if added == "nodeSelector":
        text = json.dumps(f"{added} has {key}, which another value sets too; leave one out")
        return [f"{pad}{{{{- if {has} }}}}{{{{ fail {text} }}}}{{{{- end }}}}", *body]
    return [f"{pad}{{{{- if not ({has}) }}}}", *body, f"{pad}{{{{- end }}}}"]


def _refused_variable(name, indent):
    text = json.dumps(f"env has {name}, which the manifest sets itself; leave it out")
    return f"{' ' * indent}{{{{- if hasKey $.Values.env {json.dumps(name)} }}}}{{{{ fail {text} }}}}{{{{- end }}}}"


def _identity(item):
    """Equal in the same items of two variants."""
    if not isinstance(item, dict):
        return json.dumps(item)
    if "kind" in item and "metadata" in item:
        return f"{item['kind']}/{item['metadata'].get('name')}"
    name = item.get("name", item.get("groupName"))
    return name if isinstance(name, str) else json.dumps(plain(item), sort_keys=True)


def _rows(items):
    """(name, item) of each item; equal items have different names. An option names the word after it."""
    seen, rows, option = {}, [], None
    for item, after in zip(items, [*items[1:], None]):
        word = isinstance(item, str) and item.startswith("-") and item != "--"
        name = f"{option} value" if option and not word else _identity(item)
        option = name + (_identity(after) if item == "-x" else "") if word else None
        name = option or name
        seen[name] = seen.get(name, 0) + 1
        rows.append((name if seen[name] == 1 else f"{name}#{seen[name]}", item))
    return rows


def _unit(item):
    """The placeholder that names a repeated item; None in others."""
    if not isinstance(item, dict):
        return item
    ports = item.get("ports")
    if list(item) == ["ports"] and len(ports) == 1:
        return ports[0].get("port")
    return item.get("name") or item.get("key") or (item.get("port") if item.get("port") == COUNTED else None)


def _counted(items):
    """One item instead of one for each rank (the ports of their metrics), and instead of two (mpirun's -x NAME)."""
    made = []
    for item in items:
        if item == EXPORTED and made and made[-1] == "-x":
            made[-1] = Map(name=EXPORTED)
            continue
        for key in ("name", "port"):
            text = item.get(key) if isinstance(item, dict) else None
            if text == "metrics-0":
                made.append(Map({**item, key: COUNTED}))
                break
            if isinstance(text, str) and re.fullmatch(r"metrics-\d+", text):
                break
        else:
            made.append(item)
    return made


def _order(rows, keeps=True):
    """One order of all names. Each row keeps its own, unless `keeps` is false and rows contradict each other."""
    before = {name: set() for row in rows for name in row}
    for row in {tuple(row) for row in rows}:
        for first, second in zip(row, row[1:]):
            before[second].add(first)
    try:
        return list(graphlib.TopologicalSorter({name: sorted(before[name]) for name in before}).static_order())
    except graphlib.CycleError:
        if keeps:
            raise AssertionError("no order is that of all these lists; please report the command") from None
        return list(before)


def _dashed(body, indent):
    """A mapping as an item of a list. Its dash stands alone if the first entry has a condition."""
    at = next(i for i, line in enumerate(body) if not line.lstrip().startswith("#"))
    if body[at].lstrip().startswith("{{-"):
        return [" " * indent + "-", *body]
    return [*(line[2:] for line in body[:at]), " " * indent + "- " + body[at][indent + 2 :], *body[at + 1 :]]
