"""Loops: rows that a job puts out in one epoch and takes in the next.

``job.loop(schema)`` is a stream like any other, with rows only once something closes it: ``loop.close(stream)``. What
that stream has in an epoch is written before the epoch is committed, and is the loop's from the next epoch on.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from holdfast.api.stream import Stream
from holdfast.errors import PlanError
from holdfast.plan.graph import Loop, Sink, leaves, outputs, updating

if TYPE_CHECKING:
    from holdfast.api.drawing import Drawing

_NAME = re.compile(r"[\w.-]+")
_SAFE = "Nothing was started."


class LoopStream(Stream):
    """The rows that go round. Made by ``job.loop``; ``close`` says which rows these are."""

    def __init__(self, job: Drawing, loop: Loop, frame: Any, max_rounds: int | None) -> None:
        super().__init__(job, loop, frame)
        self._loop, self._max_rounds = loop, max_rounds

    @property
    def name(self) -> str:
        return self._loop.name

    def close(self, stream: Stream) -> None:
        """Have these rows go round: what ``stream`` puts out in an epoch, the loop has in the next one.

        It must have the loop's columns, and put out rows that stay. Once for each loop.
        """
        if stream._job is not self._job:
            raise PlanError(f"Loop '{self.name}' is closed with a stream of another job.", safe=_SAFE)
        if any(sink.closes is self._loop for sink in self._job._sinks):
            raise PlanError(
                f"Loop '{self.name}' is closed twice.",
                safe=_SAFE,
                todo="Close it once, with a union of both streams; or draw another loop.",
            )
        if len(outputs(stream._node)) != len(list(leaves(stream._node))):
            raise PlanError(
                f"Loop '{self.name}' is closed with rows that no stage has put out.",
                safe=_SAFE,
                todo="Close it with what a stage puts out: key_by(…).process(…), say.",
            )
        if updating(stream._node):
            raise PlanError(
                f"Loop '{self.name}' is closed with rows that can be taken back, and what has gone round cannot.",
                safe=_SAFE,
                todo="Close it with rows that stay: of process, distinct, a join, closed windows.",
            )
        wanted, found = ([(one.name, one.dataType.simpleString()) for one in side.schema] for side in (self, stream))
        if wanted != found:
            raise PlanError(
                f"Loop '{self.name}' is of ({_columns(wanted)}), and is closed with ({_columns(found)}).",
                safe=_SAFE,
                todo="Select the same columns in the same order, with the same types.",
            )
        self._job._add_sink(
            Sink(
                f"loop:{self.name}",
                stream._node,
                "loop",
                "update",
                stream.schema,
                closes=self._loop,
                max_rounds=self._max_rounds,
            )
        )


def checked_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise PlanError(f"'{name}' cannot be a loop's name.", todo="Use letters, digits, _, - and dots.")
    return name


def _columns(columns: list[tuple[str, str]]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in columns)
