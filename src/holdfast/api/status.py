"""What ``run.status()`` tells: plain values, of one moment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from holdfast.api.named import Named
from holdfast.driver.history import ROUTINE, Ongoing, RunEvent
from holdfast.launch.fleet import Member
from holdfast.log.records import FEED
from holdfast.master.autoscale import Advice
from holdfast.operators.unit_table import largest_of
from holdfast.wire.questions import HostedStatus

if TYPE_CHECKING:
    from holdfast.driver.loop import Shell
    from holdfast.spark.stream import JobPlan


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SECTION = "main"
SHOWN = 8
"""So many of the last events are in a printed status."""


@dataclass(frozen=True)
class ContainerStatus:
    name: str
    alive: bool
    slices: int
    backups: int
    threads: int
    pid: int
    bytes: int
    host: str
    suspect: bool
    """It has been silent for a moment."""
    owned: tuple[int, ...] = ()
    """The numbers of its slices."""


@dataclass(frozen=True)
class StageStatus:
    name: str
    keys: int
    """Rows of its state: keys, or keys and windows."""
    bytes: int
    watermark: datetime | None = None
    """How far event time has come, in UTC; None without event time, or before the first row of every source."""
    waits_for: str | None = None
    """The source or stage whose event time holds the watermark back."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Rows since the run began that were late, without a time, doubled and the like."""
    safety: str = ""
    """How its state is made safe, as ``job.start`` was told."""
    units: int = 0
    """Under ``hf.Eventual``: units of its state that live. A recovery of all of them now would read ``extent`` rows of
    the log for each of them (``Q``) and replay ``behind`` rows of the input (``U``)."""
    extent: float = 0.0
    behind: int = 0
    left: int = 0
    """Units that are due to be written again, and for which there was no time yet."""
    largest: tuple[int, ...] = ()
    """Rows of the ten largest units: each is written whole when its turn comes."""

    def __str__(self) -> str:
        text = f"{self.name}: {self.keys:,} keys, {self.bytes / 1e6:,.1f} MB"
        if self.watermark is not None:
            text += f", watermark {self.watermark:%Y-%m-%d %H:%M:%S}"
        if self.waits_for is not None:
            text += f" (held back by {self.waits_for})"
        if self.units:
            text += f", {self.units:,} units: Q {self.extent:.1f}, U {self.behind:,}"
            text += f", {self.left:,} of them due" if self.left else ""
            text += f", the largest of {self.largest[0]:,} rows" if self.largest else ""
        return "".join([text, *(f", {rows:,} {what}" for what, rows in sorted(self.counts.items()))])


@dataclass(frozen=True)
class SourceStatus:
    name: str
    rows: int | None = None
    """In the newest batch that Spark has told of; None before that, or where it does not tell sources apart."""
    lag: int | None = None
    """Rows that the source has and the job has not read, where it tells (Kafka does)."""

    def __str__(self) -> str:
        text = f"{self.name}:" + (" nothing yet" if self.rows is None else f" {self.rows:,} rows in the last batch")
        return text if self.lag is None else f"{text}, {self.lag:,} behind"


@dataclass(frozen=True)
class JobStatus:
    """One of the jobs that share these containers: those of a hub, or the one there is."""

    name: str
    epoch: int
    phase: str
    rows: int
    """Of a job alone: rows since the run began; of one in a hub: rows that its stages took in the last epoch."""
    creator: str = ""
    stages: tuple[str, ...] = ()
    """Its own names of them; some may be one with another job's."""
    keys: int = 0
    """Rows of their states."""
    bytes: int = 0
    seconds: float = 0.0
    """What the last epoch cost for it: the time of containers' threads, and of its sinks."""
    error: str | None = None
    """Why it goes along without rows, if it does: what it raised, and in which epoch."""

    def __str__(self) -> str:
        by = f" by {self.creator}" if self.creator else ""
        held = f"{self.keys:,} keys, {self.bytes / 1e6:,.1f} MB"
        text = f"{self.name}{by}: {held}, {self.rows:,} rows in {self.seconds:.3f} s"
        return text if self.error is None else f"{text}, left out: {self.error}"


@dataclass(frozen=True)
class SectionStatus:
    """A part of the graph with epochs of its own: today the whole of it."""

    name: str
    epoch: int
    backlog: int | None = None
    """Rows that wait for it, where all its sources tell."""


@dataclass(frozen=True)
class StreamStatus:
    """The source, as blocks: one of Spark's batches each; or a stream that the job has named, a block of it for each
    epoch that has put something out."""

    name: str
    blocks: int
    """So many, since the store was made; of a store from before there were blocks, its epochs count too."""
    backlog: int
    """Those that no epoch has read; of a named stream, those that the reader that is furthest behind has not."""
    held_by: tuple[str, ...] = ()
    """Who keeps its oldest block from going."""

    def __str__(self) -> str:
        held = f", held by {', '.join(self.held_by)}" if self.held_by else ""
        return f"{self.name}: {self.blocks:,} blocks, {self.backlog:,} unread{held}"


@dataclass(frozen=True)
class SnapshotStatus:
    """A state that is kept as of an epoch: ``name`` is the number of the snapshot."""

    name: str
    epoch: int


@dataclass(frozen=True)
class LoopStatus:
    """Rows that go round (``job.loop``)."""

    name: str
    rounds: int
    """How often, since rows of a source came last or the run began."""
    backlog: int
    """Rows that wait for the next epoch; one that two stages take counts twice."""

    def __str__(self) -> str:
        return f"{self.name}: {self.rounds:,} rounds, {self.backlog:,} rows wait"


@dataclass(frozen=True)
class Status:
    """A job at one moment. ``epoch`` is the last committed one."""

    job: str
    epoch: int
    phase: str
    rows: int
    epoch_rows: int
    epoch_seconds: float
    epoch_parts: dict[str, float]
    containers: tuple[ContainerStatus, ...]
    stages: Named[StageStatus]
    """By their numbers or names: ``status.stages["clicks_by_product_agg"]``. So are all that follow below."""
    events: tuple[RunEvent, ...]
    """What happened, the oldest first: losses, recoveries, rescales, copies, checkpoints, failures."""
    ongoing: tuple[Ongoing, ...]
    """Recoveries, rescales and moves that are under way."""
    copies: str
    """How many copies there are of those that the safety policy asks for: "128 of 128 copies"."""
    preaggregating: bool
    scaling: Advice | None
    """How many containers autoscaling would have, and why; None before it has seen an epoch, or without a
    ``processingTime`` to keep up with."""
    sources: Named[SourceStatus] = field(default_factory=Named)
    jobs: Named[JobStatus] = field(default_factory=Named)
    sections: Named[SectionStatus] = field(default_factory=Named)
    streams: Named[StreamStatus] = field(default_factory=Named)
    snapshots: Named[SnapshotStatus] = field(default_factory=Named)
    loops: Named[LoopStatus] = field(default_factory=Named)
    security: str = ""
    """How driver, containers and Spark's tasks talk to each other: "Unix sockets", "TLS", "plain TCP"."""

    def __str__(self) -> str:
        lines = [
            f"{self.job}: epoch {self.epoch}, {self.phase}, {self.rows:,} rows; the last epoch had {self.epoch_rows:,} "
            f"in {self.epoch_seconds:.3f} s; {self.copies}" + (f"; over {self.security}" if self.security else "")
        ]
        lines += [f"  now   {one}" for one in self.ongoing]
        lines += [
            f"  {one.name} on {one.host}: {one.slices} slices, {one.backups} copies, {one.threads} threads, "
            f"{one.bytes / 1e6:,.1f} MB{' (silent)' if one.suspect else ''}"
            for one in self.containers
            if one.alive
        ]
        lines += [f"  source {source}" for source in self.sources]
        lines += [f"  {stage}" for stage in self.stages]
        lines += [f"  stream {stream}" for stream in self.streams if stream.name != FEED]
        lines += [f"  loop {loop}" for loop in self.loops]
        if self.scaling is not None:
            lines.append(f"  scaling: {self.scaling.reason}")
        news = [event for event in self.events if event.kind not in ROUTINE]
        lines += [f"  {event}" for event in news[-SHOWN:]]
        return "\n".join(lines)


def _moment(micros: int | None) -> datetime | None:
    return None if micros is None else EPOCH + timedelta(microseconds=micros)


def status_of(
    job: str,
    plan: JobPlan,
    shell: Shell,
    members: Sequence[Member],
    answers: Mapping[str, HostedStatus],
    preaggregating: bool,
    scaling: Advice | None,
    *,
    safety: str = "",
    security: str = "",
    progress: Any = None,
    stopped: bool = False,
    jobs: Sequence[JobStatus] = (),
    snapshots: Sequence[SnapshotStatus] = (),
    streams: Sequence[StreamStatus] = (),
) -> Status:
    table = shell.machine.routing.table
    suspects = shell.suspects()
    containers = tuple(
        ContainerStatus(
            name=member.name,
            alive=member.alive,
            slices=table.count(member.name),
            backups=shell.machine.copies_on(member.name),
            threads=answers[member.name].threads if member.name in answers else 0,
            pid=member.pid,
            bytes=sum(stage.nbytes for stage in answers[member.name].stages.values()) if member.name in answers else 0,
            host=member.host,
            suspect=member.name in suspects,
            owned=tuple(number for number, owner in enumerate(table) if owner == member.name),
        )
        for member in members
    )
    units = {stage.name: shell.units(stage.name, list(answers)) for stage in plan.stages}
    stages = Named(
        StageStatus(
            stage.name,
            sum(answer.stages[stage.name].rows for answer in answers.values() if stage.name in answer.stages),
            sum(answer.stages[stage.name].nbytes for answer in answers.values() if stage.name in answer.stages),
            _moment(shell.time.watermarks.get(stage.name)),
            shell.time.holding_back(stage),
            dict(shell.counts.get(stage.name, {})),
            safety,
            units[stage.name][0],
            units[stage.name][1] / max(units[stage.name][0], 1),
            *units[stage.name][2:],
            largest_of(answer.stages[stage.name].largest for answer in answers.values() if stage.name in answer.stages),
        )
        for stage in plan.stages
    )
    held, wanted = shell.machine.copies_short()
    phase = "stopped" if stopped else shell.machine.phase
    sources = sources_of(plan.reads, progress)
    lags = [source.lag for source in sources]
    backlog = None if None in lags else sum(lag or 0 for lag in lags)
    return Status(
        job=job,
        epoch=shell.machine.committed,
        phase=phase,
        rows=shell.rows,
        epoch_rows=shell.last.rows,
        epoch_seconds=shell.last.seconds,
        epoch_parts=dict(shell.last.parts),
        containers=containers,
        stages=stages,
        events=shell.history.events,
        ongoing=shell.history.ongoing(),
        copies=f"{held} of {wanted} copies",
        preaggregating=preaggregating,
        scaling=scaling,
        sources=sources,
        security=security,
        snapshots=Named(snapshots),
        jobs=Named(jobs or [JobStatus(job, shell.machine.committed, phase, shell.rows)]),
        sections=Named([SectionStatus(SECTION, shell.machine.committed, backlog)]),
        streams=Named([StreamStatus(FEED, shell.taken_in, shell.unread), *streams]),
        loops=Named(LoopStatus(name, *shell.rounds_of(name)) for name in loops_of(plan)),
    )


def loops_of(plan: JobPlan) -> list[str]:
    return [sink.closes.name for sink in plan.closing if sink.closes]


def sources_of(reads: Mapping[str, int], progress: Any) -> Named[SourceStatus]:
    """The sources of a plan, from what Spark last told of its query, which reads each so often for a batch.

    Spark tells of a source once, and counts the rows of all ``reads``. Where it tells of more or fewer, because a
    DataFrame is made of several streams or two are made of one, nobody can tell whose they are.
    """
    told = list(getattr(progress, "sources", None) or ())
    if len(told) != len(reads):
        return Named(map(SourceStatus, reads))
    found = []
    for (name, often), one in zip(reads.items(), told, strict=True):
        behind = (one.metrics or {}).get("avgOffsetsBehindLatest")
        rows = int(one.numInputRows) // max(often, 1)
        found.append(SourceStatus(name, rows, None if behind is None else int(float(behind))))
    return Named(found)
