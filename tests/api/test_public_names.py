"""What users can import and call stays what it is."""

from __future__ import annotations

import inspect
import subprocess
import sys

import holdfast as hf


def test_everything_promised_is_there() -> None:
    assert set(hf.__all__) == {name for name in dir(hf) if name in hf.__all__}
    for name in hf.__all__:
        assert getattr(hf, name) is not None
    aggregates = {"count", "sum", "min", "max", "mean", "var", "stddev", "approx_distinct", "first", "last"}
    assert aggregates <= set(hf.__all__)


def test_fixed_signatures() -> None:
    assert list(inspect.signature(hf.Job).parameters) == ["name", "spark", "store"]
    assert list(inspect.signature(hf.Job.read).parameters) == ["self", "df", "name", "time", "lateness"]
    for verb in ("select", "where", "with_column", "transform", "union", "key_by", "write", "for_each_batch"):
        assert callable(getattr(hf.Stream, verb))
    for verb in ("state", "status", "kill", "process_all_available", "await_termination", "stop"):
        assert callable(getattr(hf.Run, verb))
    assert list(inspect.signature(hf.Run.kill).parameters) == ["self", "name"]


def test_every_error_is_a_holdfast_error() -> None:
    errors = [value for name in hf.__all__ if isinstance(value := getattr(hf, name), type) and "Error" in name]
    assert errors
    assert all(issubclass(error, hf.HoldfastError) for error in errors)


def test_errors_cross_processes_whole() -> None:
    from holdfast.errors import from_wire

    error = hf.CorruptionError("what", safe="safe", todo="todo")
    found = from_wire(f"Flight returned: {error.to_wire()} and more")
    assert isinstance(found, hf.CorruptionError)
    assert str(found) == str(error) == "what\n  Safe: safe\n  Do:   todo"
    long = hf.StoreError("x" * 50_000)
    assert len(long.to_wire()) < 8000
    assert from_wire("nothing of ours") is None


def test_workers_do_not_pay_for_the_api() -> None:
    """Spark's Python workers import the intake alone."""
    code = (
        "import sys, holdfast.spark.intake;"
        "print([name for name in ('numba', 'pandas', 'holdfast.api.job') if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"
