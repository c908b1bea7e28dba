"""What a keyed aggregation is, as the plan hands it over: keys, aggregates, and how its input behaves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Column:
    """A column as users see it; ``type`` is Spark's simpleString."""

    name: str
    type: str


@dataclass(frozen=True)
class AggregateSpec:
    """One aggregate: its output name, its function, and the input column that holds its values.

    ``input`` None is ``count(*)``. ``where`` names a column that is null in rows which do not count. For
    ``approx_distinct`` the input column holds Spark's xxhash64 of the value (null where the value is) while
    ``input_type`` stays the value's type.
    """

    name: str
    function: str
    input: str | None
    input_type: str | None
    options: tuple[tuple[str, Any], ...] = ()
    where: str | None = None

    def option(self, name: str, default: Any) -> Any:
        return dict(self.options).get(name, default)


@dataclass(frozen=True)
class StageSpec:
    """A keyed aggregation. An updating input carries ``_d`` (+1, -1) and may take rows back.

    ``overflow`` is what becomes of results that are too large for their type ("fail", "null"); "": as ``ansi`` says.
    """

    keys: tuple[Column, ...]
    aggregates: tuple[AggregateSpec, ...]
    updating_input: bool = False
    ansi: bool = True
    overflow: str = ""
