"""Placement: from the nodes that workers are on to their ranks. Pure: no Ray, no network."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Seat:
    """Where a rank is among the others. Nodes may have different numbers of ranks: `cross_size` counts the nodes that
    have a rank of this local rank, and `cross_rank` is this node's place among them, as in Horovod."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int


def by_node(nodes: Sequence[Hashable], devices: Sequence[Sequence[str]] | None = None) -> list[int]:
    """The order in which workers get their ranks: node by node, nodes as they first appear, and within a node by the
    first device of each, then as given. Element k is the worker that becomes rank k."""
    first = {}
    for node in nodes:
        first.setdefault(node, len(first))

    def device(worker: int) -> tuple:
        least = min((_as_number(one) for one in devices[worker]), default=(0, 0, "")) if devices else ()
        return least

    return sorted(range(len(nodes)), key=lambda worker: (first[nodes[worker]], device(worker), worker))


def number(nodes: Sequence[Hashable]) -> list[Seat]:
    """The seats of ranks 0, 1, 2..., given the node of each. Ranks of a node need not be consecutive."""
    sizes = Counter(nodes)
    first = list(dict.fromkeys(nodes))
    seen = Counter()
    seats = []
    for rank, node in enumerate(nodes):
        local = seen[node]
        seen[node] += 1
        across = [one for one in first if sizes[one] > local]
        seats.append(Seat(rank, len(nodes), local, sizes[node], across.index(node), len(across)))
    return seats


def visible_devices(nodes: Sequence[Hashable], devices: Sequence[Sequence[str]]) -> list[list[str]]:
    """What each rank is to see: the devices of all ranks of its node, those of local rank 0 first, so that device
    `local_rank` is its own where each has one."""
    union: dict[Hashable, dict[str, None]] = {}
    for node, own in zip(nodes, devices):
        union.setdefault(node, {}).update(dict.fromkeys(sorted(own, key=_as_number)))
    return [list(union[node]) for node in nodes]


def _as_number(name: str) -> tuple:
    """Devices by number; names that are none (UUIDs) behind them."""
    return (0, int(name), "") if str(name).isdigit() else (1, 0, str(name))
