"""One job of a hub, while it is drawn and after."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from holdfast.api.drawing import Drawing
from holdfast.api.keyed import StageStream
from holdfast.api.loops import LoopStream
from holdfast.api.stream import Stream
from holdfast.errors import PlanError
from holdfast.plan.compile import PlannedStage
from holdfast.plan.frames import Frame
from holdfast.plan.graph import Output, Sink, Stage

if TYPE_CHECKING:
    from holdfast.api.hub import Hub
    from holdfast.spark.hub_stream import HubPlan


def stages_of(jobs: Mapping[str, HubJob]) -> dict[str, Stage]:
    """The stages of these jobs by what people call them."""
    return {f"{job.name}/{name}": node for job in jobs.values() for name, node in job._called.items()}


def now_of(stream: StageStream) -> Stage:
    """The stage, which may have been one with another job's when the stream was drawn."""
    stage, job = stream._stage, stream._job
    return job._now.get(stage, stage) if isinstance(job, HubJob) else stage


class HubJob(Drawing):
    """One job of a hub. It is drawn like any other; its streams begin with ``stream(name)``."""

    def __init__(self, hub: Hub, name: str, creator: str) -> None:
        super().__init__(name)
        self.hub, self.creator = hub, creator
        self.spark = hub.spark
        self._called: dict[str, Stage] = {}
        """Its stages by the names that it knows them by; some of them other jobs have drawn."""
        self._sources = hub._sources
        self._texts: list[dict[str, str | None]] = []
        """What it is, if it is drawn by text alone."""
        self._verbs = self._reading = False
        """Something was drawn otherwise, which only the program can draw again; a text is drawn just now."""
        self._asked: set[str] = set()
        self._now: dict[Stage, Stage] = {}
        """What it reads of other jobs, by their names for it; what has become of stages that were one with others'."""

    def stream(self, name: str) -> Stream:
        """A source of the hub, or a stage: of this job by its name, of another as ``"job/stage"``."""
        found = self._stream_called(name)
        if found is None:
            sources = ", ".join(source.name for source in self._sources) or "none"
            stages = ", ".join(stages_of(self.hub._jobs)) or "none"
            raise PlanError(
                f"There is no stream '{name}' in hub '{self.hub.name}'.",
                safe="Nothing was changed.",
                todo=f"Its sources are: {sources}; its stages: {stages}.",
            )
        return found[0]

    def sql(self, text: str, name: str | None = None, *, dialect: str = "spark") -> Stream:
        with self._by_text():
            stream = super().sql(text, name, dialect=dialect)
        self._texts.append({"text": text, "name": name, "dialect": dialect})
        return stream

    def loop(self, schema: str | StructType, name: str = "loop", *, max_rounds: int | None = 1000) -> LoopStream:
        raise PlanError(
            "The jobs of a hub cannot have loops yet.",
            safe="Nothing was changed.",
            todo="Give this one to a job of its own, hf.Job, with its own store.",
        )

    def plan(self) -> HubPlan:
        return self.hub.plan()

    @contextmanager
    def _by_text(self) -> Iterator[None]:
        self._reading = True
        try:
            yield
        finally:
            self._reading = False

    # --- names --------------------------------------------------------------------------------------------

    def _stream_called(self, name: str) -> tuple[Stream, Mapping[str, str]] | None:
        own = super()._stream_called(name)
        if own is not None:
            return own
        job, _, stage = name.partition("/" if "/" in name else ".")
        planned = self.hub._stage(job, stage) if stage else None
        if planned is not None:
            self._asked.add(f"{job}/{stage}")
            return self._stage_stream(planned), self._times_of(planned)
        known = self.hub._stream_called(name)
        return None if known is None else (Stream(self, known[0]._node, known[0]._frame), known[1])

    @property
    def _every_stage(self) -> Sequence[PlannedStage]:
        return list(self.hub._planned_of.values())

    def _stage_called(self, name: str) -> PlannedStage | None:
        node = self._called.get(name)
        return None if node is None else self.hub._planned_of[node]

    def _stored_name(self, name: str) -> str:
        return self.hub._stored_name(f"{self.name}/{name}")

    def _named_sink(self, sink: Sink) -> Sink:
        after = f"{self.name}/{sink.after}" if sink.after else ""
        feeds = f"{self.name}/{sink.feeds}" if sink.feeds else ""
        named = replace(sink.named, stream=f"{self.name}/{sink.named.stream}") if sink.named is not None else None
        return replace(sink, name=f"{self.name}/{sink.name}", after=after, feeds=feeds, named=named)

    def _add_sink(self, sink: Sink) -> None:
        self._verbs = self._verbs or not self._reading
        super()._add_sink(sink)

    def _taken_in(self, name: str, planned: PlannedStage) -> PlannedStage:
        self._verbs = self._verbs or not self._reading
        hub, public = self.hub, f"{self.name}/{name}"
        known = hub._names.get(public)
        twin = hub._twins.of(planned, known)
        if public in hub._updates.stored:  # another may be as it is drawn, and not as it is
            hub._twins.keep_apart(twin)
        if twin is not planned.node:
            self._called[name] = twin
            if known is None:
                hub._ever = hub._ever.without(planned.plan.name)
            return hub._planned_of[twin]
        if any(one.plan.name == planned.plan.name for one in hub._planned_of.values()):
            raise PlanError(
                f"Stage '{public}' was one with '{planned.plan.name}' when this hub ran last, and is another now.",
                safe="Nothing was started.",
                todo="Give it another name, key_by(…, name='…'): it then starts empty. Or draw it as it was.",
            )
        hub._planned_of[planned.node] = planned
        self._called[name] = planned.node
        return planned

    def _looked_into(self, stream: StageStream) -> PlannedStage:
        now, job = now_of(stream), stream._job
        if isinstance(job, HubJob) and job is not self:
            self._asked.update(f"{job.name}/{name}" for name, node in job._called.items() if node is now)
        return self._planned(now)

    def _frame_of(self, output: Output, planned: PlannedStage) -> Any:
        make: Callable[[], Any] = lambda: super(HubJob, self)._frame_of(output, planned)  # noqa: E731
        return self.hub._twins.frame(output, make)

    # --- as its hub does ----------------------------------------------------------------------------------

    def _declared_source(self, name: str, ddl: str, format: str | None, options: Mapping[str, str]) -> Stream:
        raise PlanError(
            f"Stream '{name}' would be a source, and a hub's jobs read its sources.",
            safe="Nothing was started.",
            todo=f"hub.read(df, name='{name}'), before the hub is started.",
        )

    def _table_columns(self, name: str) -> list[str] | None:
        return self.hub._table_columns(name)

    @property
    def _default_format(self) -> str:
        return self.hub._default_format

    @property
    def _ansi(self) -> bool:
        return self.hub._ansi

    def _view(self, frame: Any) -> Frame:
        return self.hub._view(frame)

    def _empty(self, schema: StructType) -> DataFrame:
        return self.hub._empty(schema)
