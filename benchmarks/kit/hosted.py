"""A container's slices over a log in a real store, without Spark: the code that ships, told what a driver tells it.

What it takes is counted in CPU seconds of this process, so that it can be compared on a machine that does other things.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from holdfast.container.job import HostedJob
from holdfast.container.staging import Staging
from holdfast.container.thread_table import ThreadTable
from holdfast.driver.units import Written
from holdfast.log.footprints import Footprints
from holdfast.log.ledger import Ledger
from holdfast.log.records import FEED, Commit, Fence, JobFile, Prepare, Range, SegmentRef
from holdfast.log.segment import SegmentWriter, segment_name
from holdfast.log.store import Store
from holdfast.operators.aggregate import StageSpec
from holdfast.operators.spec import AggregateSpec, Column, Spec
from holdfast.operators.stage import InputPlan, StagePlan, TimePlan
from holdfast.operators.unit_table import TOTAL_LOGGED
from holdfast.operators.window import WindowSpec
from holdfast.safety.policies import Checks
from holdfast.state.table_slice import TableSlice

SLICES = 16
KEYS, VALUES = (Column("k", "bigint"),), (Column("v", "bigint"), Column("t", "timestamp"))
SUMS = (AggregateSpec("n", "count", None, None), AggregateSpec("total", "sum", "v0", "bigint"))
NEVER = 1 << 40


def windows(size: int) -> WindowSpec:
    return WindowSpec(KEYS, SUMS, VALUES, size, size, "rows", None, numbered=False)


SPECS: dict[str, Spec] = {
    "running": StageSpec(KEYS, SUMS),
    "windows of 1": windows(1),
    "windows of 1,000": windows(1000),
    "tumbling": WindowSpec(KEYS, SUMS, VALUES, 10_000_000, 10_000_000, "event", "v1"),
}
OPENS = Checks(1e18, NEVER, 1e-9, 0.1, 1e9)
"""Nothing is ever written again."""


@dataclass(frozen=True)
class Recovered:
    nbytes: int
    rows: int
    seconds: float


class Hosted:
    def __init__(self, folder: Path, spec: Spec, checks: Checks | None) -> None:
        self.plan = StagePlan("s", 1, (InputPlan(1, 0),), spec, time=TimePlan())
        self.checks = checks
        self.ledger = Ledger(Store(str(folder)), "main")
        self.ledger.open_or_create_job(JobFile("j", "job", {}, SLICES, 0, stages=[self.plan.to_dict()]))
        self.threads = ThreadTable(1)
        self.job = self._job(self.threads)
        self.written = Written(None if checks is None else Footprints.begin(["s"], SLICES))
        self.epochs, self.rows, self._mark = 0, 0, -(1 << 62)
        self.job.restore(range(SLICES), 0, 0)

    def _job(self, threads: ThreadTable) -> HostedJob:
        ledger = Ledger(self.ledger.store, "main")
        return HostedJob("j", [self.plan], SLICES, ledger, threads, Staging(0), checks=self.checks)

    def epoch(self, keys: np.ndarray, time_us: int = 0) -> float:
        """One epoch of these keys: the CPU seconds that applying it takes, with what is written and synced for it."""
        prepare = self._prepared(keys, time_us)
        began = time.process_time()
        self.job.apply(prepare, range(SLICES))
        wrote = self.job.entries(prepare, range(SLICES), f"c-{self.epochs}")
        self.written.take(self.epochs, "c", wrote)
        marks, attached = self.written.named(self.epochs, ("c",) * SLICES)
        ranges = {FEED: Range(self.epochs, self.epochs)}
        self.ledger.put_commit(Commit(prepare.fence, ranges, footprints=marks, attachments=attached))
        took = time.process_time() - began
        self.written.committed(self.epochs, marks)
        self.job.commit(self.epochs)
        self.rows += len(keys)
        return took

    def _prepared(self, keys: np.ndarray, time_us: int) -> Prepare:
        self.epochs += 1
        keys = keys[np.argsort(keys % SLICES, kind="stable")]
        writer, fence = SegmentWriter(SLICES), Fence(1, self.epochs, 1)
        times = pa.array(np.full(len(keys), time_us)).cast(pa.timestamp("us"))
        hashes = (keys.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)).view(np.int64)
        columns = {"_h": pa.array(hashes), "k0": pa.array(keys), "v0": pa.array(keys % 1000), "v1": times}
        if isinstance(self.plan.operator, StageSpec):
            del columns["v1"]
        writer.append(0, pa.record_batch(columns), keys % SLICES)
        name = segment_name(fence, 1, 0, self.epochs)
        nbytes = self.ledger.section.write(name, writer.parts())
        ref = SegmentRef(name, writer.rows, nbytes, writer.checksum, 0, self.epochs)
        before, self._mark = self._mark, max(self._mark, time_us)
        made = Prepare(
            fence, 1, {FEED: Range(self.epochs, self.epochs)}, (ref,), clock=1,
            watermark_before={"s": before}, watermark_after={"s": self._mark},
        )  # fmt: skip
        self.ledger.put_prepare(made)
        return made

    def recovered(self) -> Recovered:
        """All slices come back on a container that has nothing; they must be what they were."""
        threads = ThreadTable(1)
        job = self._job(threads)
        try:
            began = time.process_time()
            nbytes, rows, _ = job.restore(range(SLICES), self.epochs, 0)
            seconds = time.process_time() - began
            mine, theirs = (self._held(one) for one in (self.job, job))
            if mine != theirs:
                raise SystemExit(f"What came back is wrong: {theirs}, not {mine}.")
            return Recovered(nbytes, rows, seconds)
        finally:
            job.close()
            threads.close()

    def _held(self, job: HostedJob) -> tuple[int, int]:
        batches = [held.state.read(self.epochs) for held in job.stages["s"].slices.values()]
        rows = pa.Table.from_batches(batches)
        return rows.num_rows, int(np.asarray(rows["n"]).sum())

    @property
    def extent(self) -> tuple[int, int, int]:
        """Living units, rows of the log back to the oldest footprint of each slice, rows of the input since then."""
        figures = self.job.stages["s"].figures(range(SLICES), (), (), ())
        found = self.job.steering.told("s", figures) if self.job.steering is not None else figures
        return found.units, found.extent, found.behind

    @property
    def logged(self) -> int:
        """Rows of the log in all."""
        states = [held.state for held in self.job.stages["s"].slices.values()]
        return sum(int(one.tables[-1].columns[TOTAL_LOGGED][0]) for one in states if isinstance(one, TableSlice))

    @property
    def log_bytes(self) -> int:
        """Of all entries."""
        section = self.ledger.section
        files = sum(section.size(f"entry/{name}") for name in section.list("entry"))
        commits = (self.ledger.get_commit(epoch) for epoch in range(1, self.epochs + 1))
        return files + sum(sum(map(len, one.attachments)) for one in commits if one is not None)


@contextmanager
def hosted(folder: Path, kind: str, checks: Checks | None) -> Iterator[Hosted]:
    made = Hosted(folder, SPECS[kind], checks)
    try:
        yield made
    finally:
        made.job.close()
        made.threads.close()
