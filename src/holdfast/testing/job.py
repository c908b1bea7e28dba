"""A job to be tested: drawn with the verbs of ``holdfast.Job``, over sources that are lists of rows."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql.types import StructType

from holdfast.api.drawing import Drawing
from holdfast.api.stream import Stream
from holdfast.driver.options import OnOverflow, checked_overflow
from holdfast.errors import PlanError
from holdfast.plan.compile import Plan
from holdfast.plan.ddl import schema_of
from holdfast.plan.declared import declared_times
from holdfast.testing.frame import MemoryFrame
from holdfast.testing.run import Run
from holdfast.testing.values import at


class Job(Drawing):
    """A graph of stages over lists of rows; no Spark, no store, no containers.

    ``ansi`` is Spark's ``spark.sql.ansi.enabled``: whether an overflow is an error.
    """

    def __init__(self, name: str = "test", *, ansi: bool = True) -> None:
        super().__init__(name)
        self._overflow_raises = ansi

    def read(
        self,
        schema: str | StructType,
        name: str | None = None,
        *,
        time: str | None = None,
        lateness: str | None = None,
    ) -> Stream:
        """A source of rows with these columns: ``read("user string, n bigint, ts timestamp", name="clicks")``.

        ``time`` and ``lateness`` are as for ``holdfast.Job.read``.
        """
        columns = schema_of(schema) if isinstance(schema, str) else schema
        return self._add_source(MemoryFrame(columns), name, declared_times(columns, time, lateness))

    def _declared_source(self, name: str, ddl: str, format: str | None, options: Mapping[str, str]) -> Stream:
        """Where its rows would come from does not matter here: they are given."""
        return self.read(ddl, name)

    def start(
        self, *, slices: int = 4, clock: str = "2026-01-01 00:00:00", on_overflow: OnOverflow | None = None
    ) -> Run:
        """Begin with no state, at that time of the epoch clock, which only ``run.advance`` moves.

        ``on_overflow`` is as for ``holdfast.Job.start``.
        """
        checked_overflow(on_overflow)
        if not 1 <= slices <= 256:
            raise PlanError(f"A test cannot have {slices} slices.", todo="Choose 1 to 256; a few show all there is.")
        return Run(self, self.plan().overflowing(on_overflow).sized(slices), slices, at(clock))

    def plan(self) -> Plan:
        return Plan(*self._drawn())

    @property
    def _ansi(self) -> bool:
        return self._overflow_raises

    def _view(self, frame: MemoryFrame) -> MemoryFrame:
        return frame

    def _empty(self, schema: StructType) -> MemoryFrame:
        return MemoryFrame(schema)
