"""Errors keep their names: what is no fault of a function is no ``FunctionError``, and no other function mends it."""

from __future__ import annotations

import errno
import threading
from typing import Any

import pytest

import holdfast as hf
from holdfast import testing
from holdfast.errors import from_wire
from holdfast.invariants import Impossible, invariant, some
from holdfast.operators import calls
from holdfast.wire.causes import named
from holdfast.wire.client import Unreachable


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (KeyError("x"), hf.BugError),
        (Impossible("a slice at 3"), hf.BugError),
        (OSError(errno.ENOSPC, "No space left on device"), hf.FullDiskError),
        (OSError(errno.EMFILE, "Too many open files"), hf.ContainerError),
        (MemoryError(), hf.ContainerError),
        (Unreachable("c1 is gone"), hf.ContainerError),
        (hf.CorruptionError("bytes"), hf.CorruptionError),
    ],
)
def test_by_cause(error: Exception, kind: type[hf.HoldfastError]) -> None:
    found = from_wire(f"Flight says: {named(error, 'A container').to_wire()}")
    assert type(found) is kind
    assert isinstance(error, hf.HoldfastError) or (found.safe and found.todo)


def test_invariants_are_no_assertions_that_go() -> None:
    invariant([1], "there is something")
    with pytest.raises(Impossible, match="nothing is there"):
        invariant([], "nothing is there")
    assert some(0, "a zero is something") == 0
    with pytest.raises(Impossible, match="nobody"):
        some(None, "nobody")
    assert not issubclass(Impossible, hf.HoldfastError)  # whoever expects one of those must not go on after this


@pytest.mark.parametrize("errors", ["fail", "dead_letter"])
@pytest.mark.parametrize("error", [Impossible("ours"), hf.CorruptionError("of the store")])
def test_what_is_not_the_functions_is_neither_its_error_nor_a_dead_letter(
    errors: str, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raises(*_: Any) -> None:
        raise error

    monkeypatch.setattr(calls.Context, "emit", raises)
    with pytest.raises(type(error)):
        _run_one(lambda key, rows, context: context.emit({"k": 1}), errors)


@pytest.mark.parametrize("use", [lambda state: state.nope, lambda state: setattr(state, "nope", 1)])
def test_a_state_that_is_none_lists_those_there_are(use: Any) -> None:
    def function(key: Any, rows: Any, context: Any) -> None:
        use(context.state)

    with pytest.raises(hf.FunctionError, match=r"no attribute 'nope' \(the states are: total, last\)"):
        _run_one(function, "fail", state={"total": hf.states.value("bigint"), "last": hf.states.value("bigint")})


def test_what_cannot_leave_the_driver_is_refused_when_the_verb_is_written() -> None:
    lock = threading.Lock()

    def locks(key: Any, rows: Any, context: Any) -> None:
        lock.acquire()

    with pytest.raises(hf.PlanError, match=r"locks cannot be sent to containers: TypeError: cannot pickle"):
        testing.Job().read("k bigint").key_by("k").process(locks, "k bigint")


def _run_one(function: Any, errors: str, **more: Any) -> None:
    job = testing.Job()
    rows = job.read("k bigint", name="rows")
    rows.key_by("k").process(function, "k bigint", errors=errors, **more)
    with job.start() as run:
        run.epoch(rows=[{"k": 1}])
