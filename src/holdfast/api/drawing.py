"""A job while it is drawn: its sources, stages and sinks so far, and the rules that hold whoever will run it.

``holdfast.Job`` has Spark run what was drawn, ``holdfast.testing.Job`` runs it in this process. Both draw with the same
verbs; what they differ in is the kind of frame that stands for rows.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pyspark.sql.types import StructType

from holdfast.api.keyed import StageStream
from holdfast.api.loops import LoopStream, checked_name
from holdfast.api.stream import Stream
from holdfast.errors import PlanError
from holdfast.operators.spec import Spec
from holdfast.plan import loops as rounds
from holdfast.plan.compile import Plan, PlannedStage, planned_stage
from holdfast.plan.ddl import schema_of
from holdfast.plan.draft import Draft
from holdfast.plan.explain import as_svg, as_text
from holdfast.plan.frames import Frame, Given, no_epoch_here, with_sign
from holdfast.plan.graph import Loop, Node, Output, Sink, Source, Stage, epochal, leaves, loops, outputs, updating
from holdfast.plan.stage_names import made_name, stream_name
from holdfast.state.slice import MAIN

_NAME = re.compile(r"[\w.-]+")


class Drawing(ABC):
    """A graph of stages over one or more sources."""

    def __init__(self, name: str) -> None:
        if not isinstance(name, str) or not name or "/" in name:
            raise PlanError(f"{name!r} cannot be a job's name.", todo="Use letters, digits, dashes and dots.")
        self.name = name
        self._sources: list[Source] = []
        self._stages: list[PlannedStage] = []
        self._sinks: list[Sink] = []
        self._loops: list[Loop] = []
        self._named_streams: dict[str, tuple[Stream, Mapping[str, str]]] = {}
        """What SQL may read from, by its name in small letters, with how late rows may be by which column."""
        self._named_sinks: dict[str, tuple[Mapping[str, str], tuple[str, ...]]] = {}
        """What SQL may write to: options, and columns to partition by."""

    @abstractmethod
    def plan(self) -> Plan:
        """What was drawn, complete."""

    @property
    @abstractmethod
    def _ansi(self) -> bool:
        """Whether an overflow is an error."""

    @abstractmethod
    def _view(self, frame: Any) -> Frame:
        """A frame as a draft sees it."""

    @abstractmethod
    def _empty(self, schema: StructType) -> Any:
        """No rows, but the columns that steps and stages will see."""

    @property
    def _default_format(self) -> str:
        """Of sinks that name none."""
        return "parquet"

    def explain(self, picture: str | None = None) -> None:
        """Print the plan: levels, stages, what they read and put out. ``picture`` is an SVG file to draw it to."""
        plan = self.plan()
        print(as_text(self.name, plan))
        if picture is not None:
            Path(picture).write_text(as_svg(self.name, plan))

    def sql(self, text: str, name: str | None = None, *, dialect: str = "spark") -> Stream:
        """Draw what SQL says: a query, or a script that ends in one; the stream of its rows.

        It reads from the job's sources and stages by their names, from earlier texts by theirs (``name``), and joins
        Spark's tables. ``name`` is also the name of the query's last stage. ``dialect="elf"`` is the query language of
        the ELF paper. docs/sql.md says what becomes of what.
        """
        from holdfast.api.sql.needs import sqlglot_is_there

        sqlglot_is_there()
        from holdfast.api.sql.script import drawn

        found = drawn(self, text, name, dialect)
        if found is None:
            raise PlanError(
                "SQL: the text has no query.",
                safe="What it declares is drawn.",
                todo="End it with a SELECT or an INSERT INTO … SELECT.",
            )
        return found

    def loop(self, schema: str | StructType, name: str = "loop", *, max_rounds: int | None = 1000) -> LoopStream:
        """Rows that the job puts out in one epoch and takes in the next: a stream with these columns, to be used
        anywhere, and closed with the rows that go round: ``loop.close(stream)``.

        ``max_rounds`` is how many epochs in a row may go by with nothing but rows of loops before the run ends with an
        error, all of it committed: a loop that never runs dry is told from one that takes long. None: any number.
        """
        if max_rounds is not None and max_rounds < 1:
            raise PlanError("max_rounds must be at least 1, or None.", safe="Nothing was started.")
        if any(loop.name == name for loop in self._loops):
            raise PlanError(f"Two loops are named '{name}'.", todo="Give each its own name: job.loop(…, name=…).")
        frame = self._empty(schema_of(schema) if isinstance(schema, str) else schema)
        loop = Loop(checked_name(name), frame)
        self._loops.append(loop)
        return LoopStream(self, loop, frame, max_rounds)

    def _name_stream(self, name: str, stream: Stream, times: Mapping[str, str]) -> None:
        known = self._named_streams.get(name.lower())
        below = {leaf.stage.name.lower() for leaf in outputs(stream._node)}
        if known is not None and known[0]._node is not stream._node and name.lower() not in below:
            raise PlanError(
                f"Two streams of the job are called '{name}'.",
                safe="Nothing was started.",
                todo="Give one of them another name; SQL does not tell small letters from capitals.",
            )
        self._named_streams[name.lower()] = (stream, times)

    def _table_columns(self, name: str) -> list[str] | None:
        """The columns of a table that is there already; None: there is none."""
        return None

    @abstractmethod
    def _declared_source(self, name: str, ddl: str, format: str | None, options: Mapping[str, str]) -> Stream:
        """A source as CREATE STREAM says it."""

    def _add_source(
        self,
        frame: Any,
        name: str | None,
        times: Mapping[str, str] | None = None,
        *,
        updating: bool = False,
        windowed: bool = False,
    ) -> Stream:
        if self._sources and (name is None or any(source.name == "source" for source in self._sources)):
            raise PlanError(
                "A job with several sources needs a name for each.",
                todo="job.read(df, name='orders'): the names tell Spark's offsets apart after a restart.",
            )
        chosen = name or "source"
        if any(source.name == chosen for source in self._sources):
            raise PlanError(f"Two sources are named '{chosen}'.", todo="Give each its own name.")
        source = Source(chosen, frame, updating)
        self._sources.append(source)
        stream = Stream(self, source, frame, windowed=windowed)
        self._named_streams.setdefault(chosen.lower(), (stream, times or {}))
        return stream

    def _drawn(self) -> tuple[tuple[PlannedStage, ...], tuple[Sink, ...]]:
        """The stages and sinks, if they make a job."""
        if not self._stages:
            raise PlanError(
                f"Job '{self.name}' keeps no state.",
                todo="Use key_by(...).agg(...), or plain Spark (df.writeStream) for a stateless query.",
            )
        used = {leaf for stage in self._stages for item in stage.inputs for leaf in leaves(item.node)}
        used |= {leaf for sink in self._sinks for leaf in leaves(sink.node)}
        for source in self._sources:
            if source not in used:
                raise PlanError(f"Nothing uses the source '{source.name}'.", todo="Use it, or do not read it.")
        rounds.check(self._loops, self._stages, self._sinks)
        return tuple(self._stages), tuple(self._sinks)

    def _draft(
        self, name: str | None, rows: Sequence[tuple[Node, Any, tuple[Given, ...]]], verb: str, by: Sequence[Given]
    ) -> Draft:
        """``verb`` and ``by`` make the name of a stage that has none."""
        node, frame, _ = rows[0]
        stream = stream_name(node)
        keys = [key if isinstance(key, str) else self._key_name(frame, key, stream) for key in by]
        chosen = name or made_name(stream, keys, verb)
        known = self._stage_called(chosen)
        if known is not None and (known.made_name or name is None):
            raise PlanError(
                f"Two stages would be called '{chosen}', by what they do: one that is {known.label}, and this one, "
                f"{verb} of {stream}{' by ' + ', '.join(keys) if keys else ''}.",
                safe="Nothing was started.",
                todo="Give one of them a name of its own: key_by(…, name='…'), job.sql(…, name='…'), WITH name AS (…).",
            )
        if known is not None:
            raise PlanError(f"Two stages are named '{chosen}'.", todo="Give each its own name: key_by(..., name=...).")
        if not _NAME.fullmatch(chosen):
            raise PlanError(f"'{chosen}' cannot be a stage's name.", todo="Use letters, digits, _, - and dots.")
        if any(epochal(node) for node, _, _ in rows):
            raise no_epoch_here()
        rows_of = [(node, self._view(frame), keys) for node, frame, keys in rows]
        draft = Draft.of(self._stored_name(chosen), rows_of, ansi=self._ansi)
        draft.called, draft.made_name = chosen, name is None
        return draft

    @property
    def _every_stage(self) -> Sequence[PlannedStage]:
        """Those that streams of this drawing may stand on."""
        return self._stages

    def _stage_called(self, name: str) -> PlannedStage | None:
        """The stage that the drawing has by that name."""
        return next((stage for stage in self._stages if stage.plan.name == name), None)

    def _stored_name(self, name: str) -> str:
        """What the store is to call a stage that is called so here."""
        return name

    def _stage_names(self, plan: Plan) -> dict[str, str]:
        """What people call the stages of a plan, and what the store does."""
        return {stage.name: stage.name for stage in plan.stages}

    def _owns(self, stream: Stream) -> bool:
        """Whether it is a stream of this drawing."""
        return stream._job is self

    def _name_of(self, stream: StageStream) -> str:
        """What the store calls its stage."""
        return stream.name

    def _looked_into(self, stream: StageStream) -> PlannedStage:
        """The stage of that stream, into which one of this drawing looks."""
        return self._planned(stream._stage)

    def _key_name(self, frame: Any, key: Given, stream: str) -> str:
        return self._view(frame).find(key, f"key of a stage over '{stream}'").name

    def _add_stage(self, draft: Draft, spec: Spec) -> StageStream:
        known: dict[Stage, PlannedStage] = {stage.node: stage for stage in self._every_stage}
        node, plan, inputs = draft.finish(spec, known, sum(len(stage.inputs) for stage in self._every_stage))
        planned = planned_stage(node, plan, inputs, draft.label or spec.label, tuple(draft.ports))
        planned = replace(planned, bounds=draft.bounds(planned, known), made_name=draft.made_name)
        planned = self._taken_in(draft.called, planned)
        stream = self._stage_stream(planned)
        self._named_streams.setdefault(draft.called.lower(), (stream, self._times_of(planned)))
        return stream

    def _taken_in(self, name: str, planned: PlannedStage) -> PlannedStage:
        """The stage that the drawing has by that name from now on."""
        self._stages.append(planned)
        return planned

    def _stage_stream(self, planned: PlannedStage) -> StageStream:
        """The rows that a stage puts out, for this drawing to go on with."""
        spec = planned.plan.operator
        output = Output(planned.node, MAIN, spec.updates)
        frame = self._frame_of(output, planned)
        return StageStream(self, output, frame, windowed=spec.windowed, complete=spec.complete)

    def _times_of(self, planned: PlannedStage) -> dict[str, str]:
        """The columns of its rows that SQL may take as event time, and how late rows may be by them."""
        return dict.fromkeys(planned.bounds.get(MAIN, {}), "0 s")

    def _stream_called(self, name: str) -> tuple[Stream, Mapping[str, str]] | None:
        """What SQL reads from by that name."""
        return self._named_streams.get(name.lower())

    def _planned(self, stage: Stage) -> PlannedStage:
        found = next((one for one in self._every_stage if one.node is stage), None)
        if found is None:
            raise PlanError(f"Stage '{stage.name}' is another job's.", todo="Read and keep both in the same job.")
        return found

    def _output(self, stage: Stage, port: str) -> Stream:
        planned = self._planned(stage)
        if port not in planned.outputs:
            known = ", ".join(f"'{name}'" for name in planned.outputs if name) or "none"
            raise PlanError(f"Stage '{stage.name}' has no output '{port}'.", todo=f"Its further outputs: {known}.")
        output = Output(stage, port, updating=False)
        return Stream(self, output, self._frame_of(output, planned))

    def _frame_of(self, output: Output, planned: PlannedStage) -> Any:
        frame = self._empty(planned.outputs[output.port])
        return with_sign(frame) if output.updating else frame

    def _add_sink(self, sink: Sink) -> None:
        if updating(sink.node) and not outputs(sink.node):
            raise PlanError(
                "These rows are another job's and change: a sink straight over them cannot tell which are withdrawn.",
                safe="Nothing was started.",
                todo="Keep them in a stage first, key_by(…).agg(…) say, and write that; or have the other job write "
                "this sink.",
            )
        # A sink keeps its number of epochs by its name, so a name must not depend on what else the job writes.
        if looped := loops(sink.node):
            raise PlanError(
                f"A sink cannot have the rows of loop '{looped[0].name}' as they are.",
                safe="Nothing was started.",
                todo="Write the stream that closes the loop, or what a stage makes of the loop's rows.",
            )
        path = next((value for key, value in sink.options.items() if key.lower() == "path"), None)
        place = f"table:{sink.table}" if sink.table else f"{sink.format}:{path}" if path else ""
        named = self._named_sink(replace(sink, name=sink.name or place or f"sink{len(self._sinks) + 1}"))
        if any(other.name == named.name for other in self._sinks):
            raise PlanError(f"Two sinks are named '{named.name}'.", todo="Give each its own name.")
        if named.after and all(other.name != named.after for other in self._sinks):
            raise PlanError(
                f"Sink '{named.name}' waits for '{named.after}', and no sink before it has that name.",
                todo="Name a sink that is written above: "
                + (", ".join(repr(one.name) for one in self._sinks) or "none")
                + ".",
            )
        self._sinks.append(named)

    def _named_sink(self, sink: Sink) -> Sink:
        """As the store knows it."""
        return sink
