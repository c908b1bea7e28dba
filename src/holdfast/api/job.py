"""A job: what a user draws, then starts."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from holdfast.api.drawing import Drawing
from holdfast.api.keyed import StageStream
from holdfast.api.naming import read_named
from holdfast.api.recalled import Record, Updates
from holdfast.api.stream import Stream
from holdfast.driver.live_job import SECTION
from holdfast.driver.options import DEFAULT, OnOverflow, Options, Where
from holdfast.driver.security import Plain
from holdfast.errors import PlanError
from holdfast.launch.fleet import Silence
from holdfast.log.ledger import Ledger
from holdfast.log.store import Store
from holdfast.master.autoscale import Autoscale, PerExecutor
from holdfast.plan.choices import one_of
from holdfast.plan.compile import Notes, PlannedStage
from holdfast.plan.declared import declared_times
from holdfast.plan.graph import Node, Output, Stage, leaves
from holdfast.recovery.policies import Recovery
from holdfast.safety.policies import Safety
from holdfast.spark import claims
from holdfast.spark.analysis import SparkFrame, asking_spark, refuse_stateful
from holdfast.spark.hub_stream import OpenPlan
from holdfast.spark.sinks import folder_of
from holdfast.spark.source import HoldfastDataSource
from holdfast.spark.stream import JobPlan

if TYPE_CHECKING:
    from holdfast.api.apart import Apart
    from holdfast.api.run import Run
    from holdfast.driver.live_job import LiveJob
    from holdfast.driver.snapshots import Snapshot


class Job(Drawing):
    """A graph of stages over one or more Spark streams, with its state in ``store``.

    ``store`` is a folder of this job alone: a local path, or any place that both Spark and Arrow know (``s3://``, ``hdfs://``).
    """

    def __init__(self, name: str, spark: SparkSession, *, store: str | os.PathLike[str]) -> None:
        super().__init__(name)
        store = os.fspath(store) if isinstance(store, str | os.PathLike) else ""
        if not store:
            raise PlanError(
                f"Job '{name}' was given an empty string, or no path, as its store.",
                safe="Nothing was started.",
                todo="Give a folder of this job alone, as a path or like s3://bucket/folder.",
            )
        _share_python(spark)
        self.spark = spark
        self.store = store
        self._changed: dict[Stage, PlannedStage] = {}
        """Stages that were changed while the job ran, as they are now."""
        self._updates: Updates = Updates(self)
        self._from_others: list[str] = []
        """What it reads of other jobs, and from where on: for people."""
        spark.dataSource.register(HoldfastDataSource)

    def read(
        self, df: DataFrame, name: str | None = None, *, time: str | None = None, lateness: str | None = None
    ) -> Stream:
        """Take any streaming DataFrame in. From the second source on, each needs a name that stays the same.

        ``time`` and ``lateness`` declare for SQL which column is event time and how late its rows may be; so does
        ``df.withWatermark``.
        """
        if not df.isStreaming:
            raise PlanError(
                "job.read was given a DataFrame that is not a stream.", todo="Make it with spark.readStream."
            )
        refuse_stateful(df)
        return self._add_source(df, name, declared_times(df.schema, time, lateness))

    def stream(
        self,
        name: str,
        *,
        store: str | os.PathLike[str],
        reader: str | None = None,
        time: str | None = None,
        lateness: str | None = None,
        blocks: int | None = None,
    ) -> Stream:
        """Read what another job puts out as ``stage.named(name)``; ``store`` is that job's, which need not run.

        It begins with the oldest block that is kept. Blocks that it has not read stay for it: ``reader`` is its name
        in the other store (this job's, unless told otherwise), which no other reader there may have. ``time`` and
        ``lateness`` are as for ``read``. ``blocks``: so many a batch takes at most (from Spark 4.2 on).
        """
        return read_named(self, name, os.fspath(store), reader or self.name, (time, lateness), blocks)

    def start(
        self,
        *,
        containers: int = 2,
        threads: int = 1,
        slices: int | Literal["auto"] | None = None,
        trigger: Mapping[str, Any] | str | None = None,
        safety: Safety | None = DEFAULT.safety,
        recovery: Recovery | None = DEFAULT.recovery,
        autoscale: Autoscale | PerExecutor | None = None,
        where: Where = "auto",
        copy_bandwidth: float | None = DEFAULT.copy_bandwidth,
        upload_limit: float | str | None = DEFAULT.upload_limit,
        silence: Silence = DEFAULT.silence,
        preaggregate: bool | Literal["auto"] = "auto",
        push: bool | Literal["auto"] = "auto",
        listen: str = "auto",
        security: Plain | None = None,
        on_overflow: OnOverflow | None = None,
        drop: Sequence[str] = (),
        drop_sinks: Sequence[str] = (),
        sinks_at_once: int = DEFAULT.sinks_at_once,
        ring: bool = False,
        prefetch: int = DEFAULT.prefetch,
        drain: bool = False,
        settle: bool = False,
        live_filters: bool = False,
        updates: Literal["keep", "drop"] | None = None,
        fork: Snapshot | str | None = None,
    ) -> Run:
        """Start the job, or go on where it was if the store has it already.

        ``trigger`` takes what Spark's ``DataStreamWriter.trigger`` takes (``{"availableNow": True}``), or a time
        ("1 second") or the name alone ("availableNow"). ``slices`` is for the life of the job: without a word about it
        128, or 32 where stages are many (eight or more, or a hub's); "auto" chooses by the cores there are. ``safety``
        says how state is made safe (``Delta``, ``Shards``, ``Eventual``, ``Sync``, or None: by the log alone),
        ``recovery`` how it comes back (``Chained``; ``Star``, ``Line``, ``Tree`` or ``Auto`` with ``Shards``;
        ``FromStore``). ``autoscale`` lets the job choose its number of containers (``Autoscale``, or ``PerExecutor``:
        one for each executor). Containers run ``where`` Spark's executors are ("executors"), or beside the driver
        ("driver"); "auto" is the driver for a local master.
        ``listen`` is the driver's address for them ("auto": none with a local master, where all of them talk over Unix
        sockets; with executors ``spark.driver.host``). On a network all of them speak TLS and show certificates of the
        run; ``security=hf.Plain()`` does without.
        ``copy_bandwidth`` bounds the bytes a second that each container sends to others for backups and moves, so
        that epochs do not feel it; None: as fast as it goes. ``upload_limit`` ("100 Mbit/s", or bytes a second) is
        for everything that a container sends to others, recoveries too.
        ``on_overflow`` says what becomes of a sum, or a mean of decimals, that is too large for its type when its row
        leaves the stage: the epoch fails ("fail"), or it is null for as long as it does not fit ("null"). None: as
        ``spark.sql.ansi.enabled`` says: it fails; or, without ANSI, integers wrap around and decimals are null. A
        start may change it, also over an epoch that failed by an overflow: "null" finishes that.
        ``drop`` names stages that the job has no more, where that could be a mistake: such a start is refused without.
        ``drop_sinks`` names sinks that were removed while an epoch was under way, and shall not get it: without a word
        about them such a start is refused. ``sinks_at_once``: so many sinks of an epoch run side by side; 1: one after
        the other, in the order in which they are written. ``ring``: containers form a ring, for ``run.vertices``; with
        ``Shards`` they do anyway. ``prefetch``: how many blocks of the source may be unread when the next batch is
        taken in; with 1 it is, while the one before is applied. ``drain``: take in nothing, read what is taken in.
        ``settle``: rows of sources wait until the loops are dry, so that what goes round comes to its end between two
        batches. Without it, they are taken together with what goes round.
        ``live_filters``: filters over sources stay out of Spark's query, so that ``run.update(stage, where=…)`` can
        replace them; nothing is pushed down into the sources then, and all of their columns are read.
        What ``run.update`` changed in earlier runs is changed again, and ``run.status().events`` say so;
        ``updates="drop"`` starts with what the program draws. If the program draws a changed stage otherwise than it
        did then, only one of the two can be meant, and the start is refused until it is said: ``"keep"`` the changes,
        or ``"drop"`` them.
        ``fork``: begin with a snapshot of another job (``run.snapshot()``, or its text
        "<store>#<number>"), in an empty store; if the store has begun with it already, go on. The job may differ from
        the one it is forked from as a changed job may from what it was.
        """
        from holdfast.driver.start import start

        options = Options(
            containers=containers,
            threads=threads,
            slices=slices,
            trigger=trigger,
            safety=safety,
            recovery=recovery,
            autoscale=autoscale,
            where=where,
            copy_bandwidth=copy_bandwidth,
            upload_limit=upload_limit,
            silence=silence,
            preaggregate=preaggregate,
            push=push,
            listen=listen,
            security=security,
            on_overflow=on_overflow,
            drop=drop,
            drop_sinks=drop_sinks,
            sinks_at_once=sinks_at_once,
            ring=ring,
            prefetch=prefetch,
            drain=drain,
            settle=settle,
        )
        one_of("live_filters", live_filters, True, False)
        if fork is not None:
            self._fork(fork)
        self._updates.recall(updates)
        plan = self.plan()
        if live_filters and any(source.updating for source in self._sources):
            raise PlanError(
                "Filters over rows that another job withdraws cannot be replaced while the job runs.",
                safe="Nothing was started.",
                todo="Leave live_filters out; filters behind a stage can be replaced anyway.",
            )
        if live_filters and plan.filters_in_stream:
            plan = OpenPlan(plan.planned, plan.sinks, plan.spark, sources=tuple(self._sources), noted=plan.noted)
        return self._run_of(start(self, plan.overflowing(on_overflow), options))

    def _fork(self, snapshot: Snapshot | str) -> None:
        from holdfast.driver.fork import fork
        from holdfast.driver.start import store_of

        fork(store_of(self), self.name, snapshot)

    def _run_of(self, live: LiveJob) -> Run:
        from holdfast.api.run import Run

        return Run(self, live)

    def plan(self) -> JobPlan:
        drawn, sinks = self._drawn()
        stages = tuple(self._changed.get(stage.node, stage) for stage in drawn)
        plan = JobPlan(stages, sinks, self.spark, noted=Notes(updates=self._updates.made))
        self._refuse_shared_folders(plan)
        return plan

    # --- what is changed while it runs --------------------------------------------------------------------

    def _changeable(self, stage: StageStream | str, running: JobPlan) -> tuple[str, PlannedStage]:
        """A stage of the running plan, by what people call it, as the program draws it with all changes so far."""
        name = stage.name if isinstance(stage, StageStream) else stage
        found = next((one for one in running.planned if one.plan.name == name), None)
        if found is None or (isinstance(stage, StageStream) and not self._owns(stage)):
            raise PlanError(
                f"There is no stage '{name}'.",
                safe="Nothing was changed.",
                todo=f"The stages of this run are: {', '.join(one.name for one in running.stages)}.",
            )
        return name, self._as_it_is(found.node)

    def _apart(self, public: str, node: Stage) -> Apart | None:
        """The stage on its own, if others have it, too."""
        return None

    def _plan_with(self, made: PlannedStage, running: JobPlan, updates: Sequence[Record]) -> JobPlan:
        """The running plan with one stage as it is to be; Spark's query goes on."""
        stages = (made if one.node is made.node else self._as_it_is(one.node) for one in running.planned)
        noted = Notes(updates=tuple(updates))
        return replace(running, planned=tuple(stages), noted=noted, streaming=running.streaming or running)

    def _as_it_is(self, node: Stage) -> PlannedStage:
        return self._changed.get(node) or self._planned(node)

    def _take_change(self, made: PlannedStage, *, other: bool = True) -> None:
        """The stage is as it was made now. ``other``: and not as it was."""
        self._changed[made.node] = made

    def _leaf_frames(self, node: Node) -> dict[Node, DataFrame]:
        frames: dict[Node, DataFrame] = {}
        for leaf in leaves(node):
            frames[leaf] = self._frame_of(leaf, self._planned(leaf.stage)) if isinstance(leaf, Output) else leaf.frame
        return frames

    def _noted_updates(self) -> Sequence[Record]:
        """What the store has of changes that were made while the job ran."""
        return Ledger(Store(self.store), SECTION).graphs().notes()[1]

    def _forget_changes(self) -> None:
        self._changed.clear()

    def _refuse_shared_folders(self, plan: JobPlan) -> None:
        claims.refuse_shared(self.spark, [(sink.name, path) for sink in plan.sinks if (path := folder_of(sink))])

    def _declared_source(self, name: str, ddl: str, format: str | None, options: Mapping[str, str]) -> Stream:
        reader = self.spark.readStream.options(**options)
        reader = reader.format(format or self._default_format)
        with asking_spark(self.spark.range(0), f"stream '{name}'"):
            return self.read((reader.schema(ddl) if ddl else reader).load(), name)

    def _table_columns(self, name: str) -> list[str] | None:
        try:
            return list(self.spark.table(name).columns)
        except AnalysisException:
            return None

    @property
    def _default_format(self) -> str:
        return str(self.spark.conf.get("spark.sql.sources.default"))

    @property
    def _ansi(self) -> bool:
        return str(self.spark.conf.get("spark.sql.ansi.enabled")).lower() == "true"

    def _view(self, frame: DataFrame) -> SparkFrame:
        return SparkFrame(frame)

    def _empty(self, schema: StructType) -> DataFrame:
        return self.spark.createDataFrame([], schema)


def _share_python(spark: SparkSession) -> None:
    """Without PYSPARK_PYTHON Spark takes the first python3 of the path; locally the driver's own is the right one."""
    context = spark.sparkContext
    if (context.master or "").startswith("local") and not os.environ.get("PYSPARK_PYTHON"):
        context.pythonExec = sys.executable
