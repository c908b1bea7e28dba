"""Checkpoints from before sums had as many columns as now."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from holdfast.errors import StoreError
from holdfast.operators.aggregate import AggregateOperator, StageSpec
from holdfast.operators.spec import AggregateSpec, Column
from holdfast.operators.stage import InputPlan, StagePlan
from holdfast.state import copies
from holdfast.state.former import as_now
from holdfast.state.slice import SliceState


def _stage(functions: list[tuple[str, str]], *, updating: bool) -> StagePlan:
    aggregates = tuple(AggregateSpec(f"{name}.{at}", name, f"v{at}", kind) for at, (name, kind) in enumerate(functions))
    spec = StageSpec((Column("k", "bigint"),), aggregates, updating)
    return StagePlan("one", 1, (InputPlan(1, 0),), spec)


def _applied(plan: StagePlan, kinds: list[str]) -> tuple[AggregateOperator, SliceState]:
    operator = AggregateOperator(plan.operator)  # type: ignore[arg-type]
    types = {"bigint": pa.int64(), "double": pa.float64(), "decimal(10,2)": pa.decimal128(10, 2)}
    columns: dict[str, Any] = {"_h": pa.array([1, 2, 1]), "k0": pa.array([1, 2, 1])}
    columns |= {f"v{at}": pa.array([4, 5, 6]).cast(pa.float64()).cast(types[kind]) for at, kind in enumerate(kinds)}
    if plan.operator.updating_input:  # type: ignore[attr-defined]
        columns["_d"] = pa.array([1, 1, 1], pa.int8())
    state = operator.new_slice()
    state.apply(1, operator.decode(pa.record_batch(columns)))
    return operator, state


def _as_then(plan: StagePlan, copy: pa.RecordBatch) -> pa.RecordBatch:
    """The copy without the columns that there were not."""
    kept, at = [], int(plan.operator.updating_input)  # type: ignore[attr-defined]
    dropped = []
    for one in plan.operator.members().values():  # type: ignore[attr-defined]
        dropped += [f"a{at + number}" for number in range(one.formerly, len(one.columns))]
        at += len(one.columns)
    kept = [name for name in copy.schema.names if name not in dropped]
    renamed, number = [], 0
    for name in kept:
        renamed.append(f"a{number}" if name.startswith("a") else name)
        number += name.startswith("a")
    header = copies.header_of(copy)
    plain = copy.select(kept).rename_columns(renamed)
    return plain.replace_schema_metadata(copies._labelled(plain.schema, header).metadata)


@pytest.mark.parametrize("updating", [False, True])
def test_what_a_sum_had_then_is_read_as_it_is_now(updating: bool) -> None:
    functions = [
        ("sum", "bigint"),
        ("mean", "decimal(10,2)"),
        ("count", "double"),
        ("sum", "double"),
        ("mean", "bigint"),
    ]
    functions += [] if updating else [("var", "double"), ("min", "double")]
    plan = _stage(functions, updating=updating)
    operator, state = _applied(plan, [kind for _, kind in functions])
    now = state.delta(0, 1)
    then = _as_then(plan, now)
    assert then.num_columns < now.num_columns
    assert as_now(plan.name, 0, operator.layouts[0], now) is now
    again = operator.new_slice()
    again.load([as_now(plan.name, 0, operator.layouts[0], then)], 1)
    if updating:
        assert again.delta(0, 1).equals(now)
    assert (
        again.read(1)
        .drop_columns("var.5" if not updating else [])
        .equals(state.read(1).drop_columns("var.5" if not updating else []))
    )


def test_what_cannot_be_read_is_refused() -> None:
    plan = _stage([("var", "double")], updating=True)
    operator, state = _applied(plan, ["double"])
    of_then = state.delta(0, 1).drop_columns(["a3", "a4", "a5"])
    with pytest.raises(StoreError, match="stage 'one' was written by another version"):
        as_now(plan.name, 0, operator.layouts[0], of_then)
