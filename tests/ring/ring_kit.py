"""Containers on a ring, with slices that are saved in pieces and come back from them."""

from __future__ import annotations

from typing import Any

from container_kit import World, until

from holdfast.errors import HoldfastError
from holdfast.log.records import FEED, Commit, Fence, Range
from holdfast.recovery.policies import Auto, Line, Star, Tree
from holdfast.ring.messages import AskLeaves, JoinRing, Policy, RingTerms
from holdfast.safety.shards import Cut
from holdfast.wire.client import Unreachable
from holdfast.wire.messages import Gather, ReadySeen, SaveShards, ShardsSaved

QUICK = {"tick": 0.1, "patience": 30}
"""A tick is short, so that a dead process is noticed at once; silence still has to last."""


def terms(policy: Policy | None = None, m: int = 3, n: int = 2, parts: int = 2, **ring: Any) -> JoinRing:
    return JoinRing(Cut(m, n, parts), policy or Star(), RingTerms(**{**QUICK, **ring}))


def neighbours(world: World, name: str) -> set[str]:
    try:
        return {one.container for one in world.call(name, AskLeaves()).leaves}
    except (Unreachable, HoldfastError):
        return set()


def settled(world: World, *names: str) -> None:
    """Until each of these knows exactly these."""
    until(lambda: all(neighbours(world, name) == set(names) for name in names))


def commit(world: World, epoch: int) -> None:
    world.ledger.put_commit(Commit(Fence(1, epoch, 1), {FEED: Range(epoch, epoch)}))


def save(world: World, owner: str, epoch: int, slices: list[int]) -> ShardsSaved:
    return world.tell(owner, SaveShards, epoch, slices)  # type: ignore[no-any-return]


def gather(world: World, name: str, slices: list[int], lost: list[str], seconds: float = 20.0) -> ReadySeen:
    return world.tell(name, Gather, 0, slices, lost=frozenset(lost), seconds=seconds)  # type: ignore[no-any-return]


def ready(world: World, names: list[str], slices: list[int], lost: list[str]) -> dict[int, str]:
    """Slice → a container that has it ready, as a master would ask for it."""
    found = {}
    for name in names:
        for number, _ in gather(world, name, slices, lost).ready:
            found[number] = name
    return found


STRUCTURES = [Star(), Star(fanout=1), Line(length=3), Tree(fanout_bits=1, depth=2), Auto()]
