"""After ``warm`` nothing compiles any more, whatever a job does."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from importlib import import_module
from pathlib import Path

import pyarrow as pa

import holdfast
from holdfast.operators.aggregate import AggregateOperator, AggregateSpec, Column, StageSpec
from holdfast.state.kernel import REGISTRY
from holdfast.state.warm import warm

VALUES = {
    "bigint": pa.array([1, None, 3]),
    "tinyint": pa.array([1, 2, 3], pa.int8()),
    "double": pa.array([1.0, 2.0, None]),
    "float": pa.array([1.0, 2.0, 3.0], pa.float32()),
    "decimal(10,2)": pa.array([Decimal("1.00"), None, Decimal("3.00")], pa.decimal128(10, 2)),
    "string": pa.array(["a", "bc", None]),
    "date": pa.array([dt.date(2020, 1, 1)] * 3),
    "boolean": pa.array([True, None, False]),
}


def test_every_kernel_is_known_to_warm() -> None:
    """Those of ``state`` it names itself; a kind that has some of its own brings them with it."""
    import_module("holdfast.operators.kinds")
    warm()
    names = {kernel.name for kernel in REGISTRY}
    root = Path(holdfast.__file__).parent
    for source in root.rglob("*.py"):
        if "@kernel(" in source.read_text():
            module = ".".join(("holdfast", *source.relative_to(root).with_suffix("").parts))
            assert any(name.startswith(f"{module}.") for name in names), source
    assert all(kernel.dispatcher is not None for kernel in REGISTRY)


def test_nothing_compiles_after_warm() -> None:
    warm()
    before = {kernel.name: len(kernel.dispatcher.signatures) for kernel in REGISTRY}
    assert all(count == len(kernel.signatures) for kernel, count in zip(REGISTRY, before.values(), strict=True))
    for updating in (False, True):
        for kind, values in VALUES.items():
            numeric = kind not in ("string", "date", "boolean")
            functions = ["count"] + (["sum", "mean", "var", "stddev"] if numeric else [])
            functions += [] if updating else ["min", "max", "first", "last"]
            spec = StageSpec(
                (Column("k", kind), Column("s", "string")),
                tuple(AggregateSpec(f"{name}_", name, "v0", kind) for name in functions)
                + (() if updating else (AggregateSpec("d", "approx_distinct", "v1", kind),)),
                updating_input=updating,
            )
            operator = AggregateOperator(spec)
            columns = {"_h": pa.array([1, 2, 3]), "k0": values, "k1": pa.array(["x", None, "z"]), "v0": values}
            columns |= {"v1": pa.array([1, None, 3]), "_d": pa.array([1, 1, 1], pa.int8())}
            batch = pa.record_batch(columns)
            state = operator.new_slice()
            state.apply(1, operator.decode(batch))
            joined = operator.concat([operator.decode(batch).slice(0, 2), operator.decode(batch).slice(1, 3)])
            state.apply(2, joined)
            state.undo()
            state.apply(2, joined)
            state.read(1, operator.decode_keys(batch))
            state.outputs(2, "changelog")
            other = operator.new_slice()
            other.load([state.delta(0, 1), state.delta(1, 2)], 2)
    assert {kernel.name: len(kernel.dispatcher.signatures) for kernel in REGISTRY} == before
    assert not any(kernel.dispatcher._can_compile for kernel in REGISTRY)
