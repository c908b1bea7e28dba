"""Which columns of a source are event times, and how late their rows may be: what a user or Spark has said of it."""

from __future__ import annotations

from pyspark.sql.types import StructType

from holdfast.errors import PlanError
from holdfast.safety.intervals import seconds_of

WATERMARK = "spark.watermarkDelayMs"
"""Where Spark keeps what ``withWatermark`` said."""


def declared_times(schema: StructType, time: str | None, lateness: str | None) -> dict[str, str]:
    """Column → how late, by ``withWatermark`` and by what was said beside it."""
    found = {
        field.name: f"{int(field.metadata[WATERMARK]) / 1000:.3f} s"
        for field in schema.fields
        if WATERMARK in (field.metadata or {})
    }
    if time is None:
        if lateness is not None:
            raise PlanError("lateness is of an event time.", safe="Nothing was started.", todo="read(…, time='ts', …)")
        return found
    if time not in schema.names:
        raise PlanError(
            f"There is no column '{time}' to be the event time.",
            safe="Nothing was started.",
            todo=f"The columns there are: {', '.join(schema.names)}.",
        )
    late = lateness or found.get(time, "0 s")
    if not late.strip().startswith("0") and not seconds_of(late):
        raise PlanError(f"{late!r} is no span of time.", todo="Write '10 s', '5 minutes', '1 hour', '250 ms'.")
    return {**found, time: f"{seconds_of(late):.6f} s"}
