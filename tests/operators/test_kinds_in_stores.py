"""What a store has of every kind: what was written once is read for ever, so no name is lost or changes its place."""

from __future__ import annotations

import json
from dataclasses import MISSING, fields

import pytest

from holdfast.operators.aggregate import StageSpec
from holdfast.operators.cumulative import CumulativeSpec
from holdfast.operators.kinds import KINDS
from holdfast.operators.spec import AggregateSpec, Column, Spec
from holdfast.operators.stage import InputPlan, StagePlan
from holdfast.operators.window import WindowSpec
from holdfast.plan.fingerprint import Fingerprint

# Those without a default are in the first stores that had the kind; what came later has one.
FIELDS = {
    "aggregate": ("keys aggregates", "updating_input ansi overflow"),
    "window": (
        "keys aggregates values size every unit time",
        "offset mode early late updating_input ansi overflow",
    ),
    "cumulative": (
        "keys aggregates values size every unit time",
        "offset mode early late updating_input ansi overflow",
    ),
    "session": ("keys aggregates values gap unit time", "mode late ansi overflow"),
    "join": ("keys left right left_out right_out how left_time right_time before after", "updating ansi"),
    "lookup": ("keys values peer found", "how"),
    "top_k": ("keys values order k", "ties rank updating_input final_input hidden_keys"),
    "window_top_k": ("keys values order k time size", "offset ties rank"),
    "distinct": ("keys values time within", "bloom slices"),
    "process": ("keys values time function states outputs", "rows errors drop_late"),
}
KEYS, VALUES = (Column("k", "bigint"),), (Column("v", "bigint"), Column("ts", "timestamp"))
AGGREGATES = (AggregateSpec("n", "count", None, None), AggregateSpec("total", "sum", "v0", "bigint"))


def test_every_kind_is_here() -> None:
    assert FIELDS.keys() == KINDS.keys()


@pytest.mark.parametrize("kind", FIELDS)
def test_fields_stay_and_what_is_added_has_a_default(kind: str) -> None:
    every = fields(KINDS[kind])  # type: ignore[arg-type]  # every kind is a dataclass
    must, may = (tuple(names.split()) for names in FIELDS[kind])
    assert tuple(field.name for field in every if field.default is MISSING) == must
    assert tuple(field.name for field in every if field.default is not MISSING)[: len(may)] == may


@pytest.mark.parametrize(
    ("spec", "described", "tables"),
    [
        (
            StageSpec(KEYS, AGGREGATES),
            {"keys": ["k: bigint"], "aggregates": ["n: count(*)", "total: sum(bigint)"], "ansi": True},
            {"keys": ("n.0", "total.0", "total.1", "total.2")},
        ),
        (
            WindowSpec(KEYS, AGGREGATES, VALUES, 10, 5, "event", "v1"),
            None,
            {
                "panes": ("(rows)", "n.0", "total.0", "total.1", "total.2"),
                "running": ("(rows)", "n.0", "total.0", "total.1", "total.2"),
            },
        ),
        (
            CumulativeSpec(KEYS, AGGREGATES, VALUES, 10, 5, "clock", None),
            None,
            {
                "days": ("(rows)", "n.0", "total.0", "total.1", "total.2"),
                "panes": ("(rows)", "n.0", "total.0", "total.1", "total.2"),
                "closed": ("clock",),
            },
        ),
    ],
)
def test_a_stage_comes_back_as_it_was(spec: Spec, described: object, tables: dict[str, tuple[str, ...]]) -> None:
    plan = StagePlan("one", 1, (InputPlan(1, 0),), spec)
    stored = json.loads(json.dumps(plan.to_dict()))
    assert StagePlan.from_dict(stored) == plan
    assert stored["kind"] == spec.kind
    said = spec.described()
    assert described is None or said == described
    assert described is not None or (said["kind"], said["keys"]) == (spec.kind, ["k: bigint"])
    assert {table.name: table.names for table in spec.tables()} == tables


def test_a_fingerprint_comes_back_as_it_was() -> None:
    plain = {"sources": ["a", "b"], "stages": {"one": {"level": 1}}, "shared": [["a", "b"]]}
    assert Fingerprint.from_dict(plain).to_dict() == plain
    assert Fingerprint(("a",)).to_dict() == {"sources": ["a"], "stages": {}}
    assert Fingerprint.from_dict({}) == Fingerprint(())
