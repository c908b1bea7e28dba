"""Who waits for epochs in the driver, and hears that none comes: with a run that is only what they look at."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

import holdfast as hf
from holdfast.driver.live_changes import LiveChanges
from holdfast.driver.live_job import LiveJob


class Shell:
    """Of a run whose epoch was given up: it stays prepared, and what is to be changed waits for it."""

    inside = False

    def __init__(self) -> None:
        self.ending, self.unread = False, 0
        self.machine = SimpleNamespace(resting=False)
        self.gate = threading.Lock()

    @contextlib.contextmanager
    def between_batches(self) -> Iterator[None]:
        with self.gate:
            yield

    @contextlib.contextmanager
    def between_epochs(self) -> Iterator[None]:
        yield

    def hurry(self) -> None:
        self.ending = True  # somebody stops the run meanwhile

    def wait_for(self, true: Any, seconds: float) -> bool:
        return bool(true())


class Run(LiveJob):
    def __init__(self, shell: Shell) -> None:
        self.shell = cast("Any", shell)

    def refuse_failed(self) -> None:
        pass


def test_a_change_that_waits_for_an_epoch_lets_a_stop_pass() -> None:
    """It holds batches back while it waits, and a stop waits for these."""
    shell = Shell()
    changes = LiveChanges.__new__(LiveChanges)
    changes._run = Run(shell)
    with contextlib.ExitStack() as between, pytest.raises(hf.ContainerError, match=r"is being stopped") as refused:
        changes._await_rest(between)
    assert refused.value.safe == "Nothing was changed."
    assert not shell.gate.locked()


def test_nobody_waits_in_a_sink_for_the_epoch_that_waits_for_it() -> None:
    shell = Shell()
    shell.inside = True
    for wait in (Run(shell).process_all_available, Run(shell).await_termination):
        with pytest.raises(hf.PlanError, match=r"\(\) in a sink would wait for the epoch"):
            wait()
