"""Which columns of a stage's rows may be taken as time by whoever reads them, and how far its watermark holds for them.

A stage's watermark speaks of its own event time. Its reader may take another column: the start of a window is long past
when the window closes. So every column that can be time has a bound: the least, over some stages, of their watermark
minus a ``hold``. No row still to come is earlier than that in this column. What has no bound is no time, and is refused
when the stage that wants it is drawn: rows would be late there without anybody having been.

Sessions have no length that a hold could be. What is to come of them begins no earlier than the oldest one open now, or
a gap before the watermark; the first of these the containers report with every epoch (``open``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from holdfast.operators.build import Spec
from holdfast.operators.distinct import DistinctSpec
from holdfast.operators.join import JoinSpec
from holdfast.operators.lookup import LookupSpec
from holdfast.operators.process import ProcessSpec
from holdfast.operators.session import SessionSpec
from holdfast.operators.spec import StageSpec
from holdfast.operators.timed import LATE
from holdfast.operators.top_k import TopKSpec
from holdfast.operators.window import WindowSpec
from holdfast.operators.window_top_k import WindowTopKSpec
from holdfast.plan.graph import Node, Output, Source, Step, Union, leaves
from holdfast.state.slice import MAIN

TIMES = ("timestamp", "timestamp_ntz")
START, END = "window_start", "window_end"


@dataclass(frozen=True)
class Bound:
    """No earlier than a stage's watermark minus ``hold`` (µs) nor, if ``open``, than its oldest open session."""

    stage: str
    hold: int = 0
    open: bool = False


Bounds = tuple[Bound, ...]
"""No earlier than the least of these."""
Columns = Mapping[str, Bounds]
"""By the names of those columns that can be time."""


@dataclass(frozen=True)
class Reading:
    """An input as its stage gets it: the bounds of its columns, those that are its event time, those that are its key
    unchanged (in the key's order; None where it is computed)."""

    columns: Columns
    times: frozenset[str]
    keys: tuple[str | None, ...]


def traced(node: Node, column: str) -> dict[Source | Output, str | None]:
    """What a column is called at each leaf it comes from, unchanged; None: it is made on the way."""
    match node:
        case Source() | Output():
            return {node: column}
        case Step():
            before = node.before(column)
            return dict.fromkeys(leaves(node.parent)) if before is None else traced(node.parent, before)
        case Union():
            found = traced(node.left, column)
            for leaf, name in traced(node.right, node.across[column]).items():
                found[leaf] = name if found.get(leaf, name) == name else None
            return found


def together(*bounds: Bounds) -> Bounds:
    """The least of all, each stage once."""
    found: dict[str, Bound] = {}
    for one in (one for some in bounds for one in some):
        known = found.get(one.stage, one)
        found[one.stage] = Bound(one.stage, max(known.hold, one.hold), known.open or one.open)
    return tuple(found.values())


def is_timed(spec: Spec) -> bool:
    """Whether a stage's rows have to do with event time at all: windows by clock or rows have their own."""
    return not (isinstance(spec, WindowSpec | SessionSpec) and spec.unit != "event")


def bounds_of(
    name: str, spec: Spec, inputs: Sequence[Reading], ports: Mapping[str, Sequence[str]]
) -> dict[str, Columns]:
    """The bounds of a stage's outputs; ``ports`` has the timestamps among the columns of each."""
    found: dict[str, dict[str, Bounds]] = {}
    first = inputs[0]
    own: Bounds = (Bound(name),)
    match spec:
        case WindowSpec() | SessionSpec() if spec.unit == "event":
            start = Bound(name, spec.size) if isinstance(spec, WindowSpec) else Bound(name, spec.gap, open=True)
            found[MAIN] = {START: (start,), END: own}
            found[LATE] = dict.fromkeys(first.times, own)
        case WindowTopKSpec():
            inside: Bounds = (Bound(name, spec.size),)
            found[MAIN] = dict.fromkeys((START, *first.times), inside) | {END: own}
        case DistinctSpec():  # a row comes out in the epoch in which it comes in
            found[MAIN] = dict(first.columns) | dict.fromkeys(first.times, own)
        case LookupSpec():
            found[MAIN] = dict(first.columns)
        case TopKSpec() if spec.final_input:
            found[MAIN] = dict(first.columns)
        case TopKSpec() | StageSpec():  # rows of the keys that came: the rest of them may be as old as it likes
            found[MAIN] = {key: first.columns[key] for key in first.keys if key is not None and key in first.columns}
        case JoinSpec():
            found[MAIN] = _of_join(name, spec, *inputs)
        case ProcessSpec():  # what the function makes of time only its author knows
            found = {port: dict.fromkeys(columns, own) for port, columns in ports.items()}
    return {
        port: {column: bounds for column, bounds in found.get(port, {}).items() if column in columns}
        for port, columns in ports.items()
    }


def _of_join(name: str, spec: JoinSpec, left: Reading, right: Reading) -> dict[str, Bounds]:
    """One of a pair comes with its epoch, the other is as far from it as the bound lets it be."""
    found: dict[str, Bounds] = {}
    if spec.before is not None and spec.after is not None:
        found |= dict.fromkeys(left.times, (Bound(name, spec.after),))
        found |= dict.fromkeys(right.times, (Bound(name, spec.before),))
    if spec.how == "inner":
        for one, other in zip(left.keys, right.keys, strict=True):
            if one is not None and other is not None and one in left.columns and other in right.columns:
                found.setdefault(one, together(left.columns[one], right.columns[other]))
    return found
