"""What stages are called, and what a name tells when a job comes back.

A stage has the name that it was given, or one made from what it does: the stream it reads, its keys, its verb. Never a
number: a stage that is put in before others would hand each of them the state of its neighbour. State is matched by
name alone, so a name that was made has to say so: when it is gone and another one is new, the job may have been edited
or may be another, and only its author knows which.

Stores of before have stages called ``stage1``, ``stage2``, … by their order. Such a store is matched by order once.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from holdfast.operators.stage import StagePlan
from holdfast.plan.changes import compare
from holdfast.plan.graph import Leaf, Node, Output, leaves

_WORD = re.compile(r"\w+")


def made_name(stream: str, keys: Iterable[str], verb: str) -> str:
    """
    >>> made_name("clicks", ["product", "(shop % 10)"], "agg")
    'clicks_by_product_shop_10_agg'
    """
    by = " ".join(keys)
    return "_".join(_WORD.findall(f"{stream} by {by} {verb}" if by else f"{stream} {verb}"))


def stream_name(node: Node) -> str:
    """The sources and stages that a stream comes from."""
    return "_".join(dict.fromkeys(_leaf_name(leaf) for leaf in leaves(node)))


def _leaf_name(leaf: Leaf) -> str:
    return "_".join(filter(None, (leaf.stage.name, leaf.port))) if isinstance(leaf, Output) else leaf.name


def job_of(stage: str) -> str:
    """The job of a hub that has drawn a stage, by its name in the store; "": it is a job's own."""
    return stage.partition("/")[0] if "/" in stage else ""


def by_number(stored: Sequence[StagePlan], asked: Sequence[StagePlan]) -> dict[str, str]:
    """The names that stages have now which a store calls by their order; empty where it calls all of them by name."""
    before, now = {plan.name for plan in stored}, {plan.name for plan in asked}
    both = enumerate(zip(stored, asked, strict=False), 1)
    return {
        old.name: new.name
        for at, (old, new) in both
        if old.name == f"stage{at}" and old.name not in now and new.name not in before
    }


def renamed(plan: StagePlan, names: Mapping[str, str]) -> StagePlan:
    """The stage as a graph in which stages have these names would have it, but for its time."""
    operator: Any = plan.operator
    for peer in plan.peers:
        operator = replace(operator, peer=names.get(peer, peer))
    return replace(plan, name=names.get(plan.name, plan.name), operator=operator)


def times_renamed(stored: Sequence[StagePlan], asked: Sequence[StagePlan], names: Mapping[str, str]) -> dict[str, str]:
    """What largest event times are called now: they have the names of the stage that takes them and of where they come
    from, which may be a stage or a source."""
    now = {name for plan in asked for name in plan.time.observed}
    found = {}
    for old in (name for plan in stored for name in plan.time.observed):
        stage, port, leaf = old.split("/", 2)
        for end in (leaf, names.get(leaf, leaf)):
            if (new := f"{names.get(stage, stage)}/{port}/{end}") in now and new != old:
                found[old] = new
    return found


def mistakable(
    stored: Sequence[StagePlan],
    asked: Sequence[StagePlan],
    made_before: Collection[str],
    made_now: Collection[str],
    dropped: Collection[str],
) -> tuple[str, str] | None:
    """A stage of the store that is gone and one that is new, of which nobody has said that they are not the same.

    Names that were given say so, unless the new one could go on with the state of the old one: then it was perhaps only
    given a name.
    """
    before, now = {plan.name for plan in stored}, {plan.name for plan in asked}
    gone = [plan for plan in stored if plan.name in made_before and plan.name not in {*now, *dropped}]
    new = [plan for plan in asked if plan.name not in before]
    for old in gone:
        for other in new:
            if job_of(old.name) != job_of(other.name):
                continue
            alike = not compare([old], [replace(other, name=old.name)]).refusals
            if other.name in made_now or alike:
                return old.name, other.name
    return None
