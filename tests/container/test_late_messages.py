"""What comes late to a container, from whoever was given up, does no harm (docs/architecture.md, "Fences")."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow.flight as flight
import pytest
from test_container_process import PLAN, SLICES, Hosted, push, rows_of

from holdfast.container.job import HostedJob
from holdfast.container.staging import Staging
from holdfast.container.thread_table import ThreadTable
from holdfast.errors import EpochGone
from holdfast.log.pack import Pack
from holdfast.wire.messages import Activate, Demote, Undo
from holdfast.wire.questions import AskStatus

ALL = list(range(SLICES))


@pytest.fixture
def hosted(tmp_path: Path) -> Iterator[Hosted]:
    made = Hosted(tmp_path)
    yield made
    made.close()


def test_late_messages_about_an_epoch_that_is_over_change_nothing(hosted: Hosted) -> None:
    writer, name, first = hosted.log(1, rows_of([1, 2, 1], [10, 20, 30]))
    hosted.apply(first)
    *_, second = hosted.log(2, rows_of([2, 3], [1, 2]))
    hosted.apply(second)
    now = {1: (2, 40), 2: (2, 21), 3: (1, 2)}
    hosted.apply(first)
    hosted.tell(Undo, 1)
    with pytest.raises(flight.FlightServerError, match="read the log"):
        push(hosted, writer, name, ALL)
    with pytest.raises(EpochGone):
        hosted.tell(Demote, 1)
    with pytest.raises(EpochGone):
        hosted.tell(Activate, 1)
    with pytest.raises(EpochGone):
        hosted.read(1, "changed")
    assert hosted.read(2) == now
    assert hosted.call(AskStatus()).staged == 0
    assert hosted.call(AskStatus()).committed == 1


def test_a_checkpoint_that_was_given_up_and_the_next_one_of_that_epoch(hosted: Hosted) -> None:
    """The one that ends first must not take the epoch away from the other, which still reads it."""
    prepares = [hosted.log(epoch, rows_of(list(range(40)), [epoch] * 40))[-1] for epoch in (1, 2, 3)]
    threads = ThreadTable(1)
    job = HostedJob("j", [PLAN], SLICES, hosted.ledger, threads, Staging(0))
    begun, go_on, calls, packed = threading.Event(), threading.Event(), count(), job.reading.packed

    def slowly(epoch: int, slices: Sequence[int]) -> Iterator[Any]:
        if next(calls) == 0:
            begun.set()
            assert go_on.wait(60)
        yield from packed(epoch, slices)

    job.reading.packed = slowly  # type: ignore[method-assign]
    raised: list[BaseException] = []

    def write() -> None:
        try:
            job.checkpoints.write(1, ALL, "checkpoint/counts.pack")
        except BaseException as error:
            raised.append(error)

    try:
        job.restore(ALL, 0, 0)
        job.apply(prepares[0], ALL)
        job.commit(1)
        writing = threading.Thread(target=write)
        writing.start()
        assert begun.wait(60)
        job.checkpoints.write(1, ALL, "checkpoint/given-up.pack")
        for prepare in prepares[1:]:
            job.apply(prepare, ALL)
            job.commit(prepare.fence.epoch)
        go_on.set()
        writing.join(60)
        assert not raised
        job.checkpoints.verify(["checkpoint/counts.pack"])
        counts, given_up = (Pack.open(job.store, f"checkpoint/{name}.pack") for name in ("counts", "given-up"))
        for number in ALL:
            assert counts.slice("counts", number).equals(given_up.slice("counts", number))
    finally:
        go_on.set()
        job.close()
        threads.close()
