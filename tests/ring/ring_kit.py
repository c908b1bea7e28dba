"""Containers on a ring, with slices that are saved in pieces and come back from them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from container_kit import World, until

from holdfast.errors import HoldfastError
from holdfast.log.records import FEED, Batch, Commit, Fence
from holdfast.recovery.policies import Auto, Line, Star, Structure, Tree
from holdfast.wire.client import Unreachable

QUICK = {"tick": 0.1, "patience": 30}
"""A tick is short, so that a dead process is noticed at once; silence still has to last."""


def terms(
    policy: Structure | Auto | None = None, m: int = 3, n: int = 2, parts: int = 2, **more: Any
) -> dict[str, Any]:
    policy = policy or Star()
    cut = {"m": m, "n": n, "parts": parts}
    parameters = asdict(policy)
    return {"terms": QUICK, "cut": cut, "policy": type(policy).__name__, "parameters": parameters, **more}


def neighbours(world: World, name: str) -> set[str]:
    try:
        return {one for one, _ in world.call(name, "leaves")["leaves"]}
    except (Unreachable, HoldfastError):
        return set()


def settled(world: World, *names: str) -> None:
    """Until each of these knows exactly these."""
    until(lambda: all(neighbours(world, name) == set(names) for name in names), 20)


def commit(world: World, epoch: int) -> None:
    world.ledger.put_commit(Commit(Fence(1, epoch, 1), {FEED: Batch("q", epoch - 1, f"offsets of {epoch}")}))


def save(world: World, owner: str, epoch: int, slices: list[int], **more: Any) -> dict[str, Any]:
    return world.call(owner, "save", epoch=epoch, slices=slices, **more)


def gather(world: World, name: str, slices: list[int], lost: list[str], seconds: float = 20.0) -> dict[str, Any]:
    return world.call(name, "gather", slices=slices, lost=lost, seconds=seconds)


def ready(world: World, names: list[str], slices: list[int], lost: list[str]) -> dict[int, str]:
    """Slice → a container that has it ready, as a master would ask for it."""
    found = {}
    for name in names:
        for number in gather(world, name, slices, lost)["ready"]:
            found[int(number)] = name
    return found


STRUCTURES = [Star(), Star(fanout=1), Line(length=3), Tree(fanout_bits=1, depth=2), Auto()]
