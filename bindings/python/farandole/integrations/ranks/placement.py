"""Placement: from the nodes that workers are on to their ranks. Pure: no Ray, no network."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Member:
    """The numbers of one rank among all ranks.

    Nodes may have different numbers of ranks. As in Horovod, `cross_size` counts the nodes that have a rank of this
    local rank, and `cross_rank` is this node's index among them.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int


Seat = Member  # the former name


def by_node(nodes: Sequence[Hashable], devices: Sequence[Sequence[str]] | None = None) -> list[int]:
    """The order in which workers get their ranks: element k is the worker that becomes rank k.

    Nodes come in the order of their first appearance. Within a node workers come by their first device, then in the
    given order. `nodes` and `devices` have one entry for each worker.
    """
    first = {}
    for node in nodes:
        first.setdefault(node, len(first))

    def device(worker: int) -> tuple:
        least = min((_as_number(one) for one in devices[worker]), default=(0, 0, "")) if devices else ()
        return least

    return sorted(range(len(nodes)), key=lambda worker: (first[nodes[worker]], device(worker), worker))


def number(nodes: Sequence[Hashable]) -> list[Member]:
    """The members of ranks 0, 1, 2..., given the node of each. Ranks of a node need not be consecutive."""
    sizes = Counter(nodes)
    first = list(dict.fromkeys(nodes))
    seen = Counter()
    members = []
    for rank, node in enumerate(nodes):
        local = seen[node]
        seen[node] += 1
        across = [one for one in first if sizes[one] > local]
        members.append(Member(rank, len(nodes), local, sizes[node], across.index(node), len(across)))
    return members


def visible_devices(nodes: Sequence[Hashable], devices: Sequence[Sequence[str]]) -> list[list[str]]:
    """The devices that each rank is to see: those of all ranks of its node, in one order.

    Where each rank has one device, device number `local_rank` is the rank's own.
    """
    union: dict[Hashable, dict[str, None]] = {}
    for node, own in zip(nodes, devices):
        union.setdefault(node, {}).update(dict.fromkeys(sorted(own, key=_as_number)))
    return [list(union[node]) for node in nodes]


def _as_number(name: str) -> tuple:
    """Sorts devices by number. Names that are not numbers (UUIDs) come last."""
    return (0, int(name), "") if str(name).isdigit() else (1, 0, str(name))
