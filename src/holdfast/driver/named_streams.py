"""The streams that a running job has named, and who reads them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.errors import PlanError
from holdfast.log.holds import backlogs, held_by
from holdfast.log.stream_tidying import held_stream
from holdfast.log.streams import streams_of

if TYPE_CHECKING:
    from holdfast.driver.live_job import LiveJob


@dataclass(frozen=True)
class StreamNow:
    name: str
    blocks: int
    backlog: int
    held_by: tuple[str, ...]


def every(run: LiveJob) -> list[StreamNow]:
    found = []
    for stream in streams_of(run.ledger.store):
        held = held_stream(stream)
        if held is not None:
            backlog = max(backlogs(held).values(), default=0)
            found.append(StreamNow(stream.name, max(held.blocks, default=0), backlog, held_by(held)))
    return found


def forget(run: LiveJob, reader: str) -> None:
    """Let a reader of any of the streams go."""
    run.refuse_stopped()
    with run.jobs.log.undisturbed():
        gone = [stream.name for stream in streams_of(run.ledger.store) if stream.forget(reader)]
    if not gone:
        known = sorted({one.reader for stream in streams_of(run.ledger.store) for one in stream.leases()})
        raise PlanError(
            f"No stream of job '{run.name}' has a reader '{reader}'.",
            safe="Nothing was changed.",
            todo=f"Those that there are: {', '.join(map(repr, known)) or 'none'}.",
        )
    run.shell.history.note("stream", f"reader '{reader}' of {', '.join(map(repr, gone))} was let go")
