"""What a kind of operator is: a spec, which is plain data, and what it answers about itself.

A spec is a frozen dataclass of numbers, texts, bytes, tuples and other such classes. It travels to containers, and
rests in ``job.json`` with every field, so a field that is added needs a default and one that is there never changes its
meaning. Whatever somebody outside of ``operators`` has to know of a kind is a question to its spec: plans, drivers and
containers never ask which kind it is. The defaults here are those of a stage without anything special.

A new kind is a module with a subclass of ``Spec`` and the operator that it builds, one line in ``kinds``, a verb in
``api`` and its tests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, Self

import pyarrow as pa

from holdfast.operators.ahead import Cut, Partials
from holdfast.operators.bounds import Columns, Reading
from holdfast.state.columns import Ints
from holdfast.state.keys import KeyRows
from holdfast.state.rows import Rows
from holdfast.state.slice import MAIN, SliceOperator, SliceState
from holdfast.state.table import Layout
from holdfast.wire.codec import to_plain


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


class Operator(SliceOperator, Protocol):
    """What a container and the plan ask of a stage's operator."""

    @property
    def ports(self) -> tuple[str, ...]:
        """The names of its outputs."""

    @property
    def state_schema(self) -> pa.Schema: ...

    def decode(self, batch: pa.RecordBatch, *, port: int = 0, partial: bool = False) -> Rows: ...

    def decode_keys(self, batch: pa.RecordBatch) -> KeyRows: ...

    def concat(self, rows: Sequence[Rows]) -> Rows: ...

    def new_slice(self) -> SliceState: ...

    def output_types(self, port: str = MAIN) -> tuple[tuple[str, str], ...]: ...

    def state_types(self) -> tuple[tuple[str, str], ...]: ...

    def units(self, table: int, keys: KeyRows) -> Ints:
        """The unit of the state that each row of a table is of, by its key there."""

    def row_units(self, rows: Rows, port: int, clock: int) -> Ints:
        """The unit that each row of an input concerns. Of rows that concern none, any."""


@dataclass(frozen=True)
class Difference:
    """What is to be told of a stage that is another than it was, and what cannot be, line by line."""

    told: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()


class Spec:
    """What a stage does, and what its kind answers."""

    kind: ClassVar[str]
    """As a store calls it."""
    free: ClassVar[frozenset[str]] = frozenset()
    """Fields that may differ between two runs (with ``keys``, which are compared for themselves): where values stand in
    the log, what is put out and how, or what ``difference`` compares in its own way."""
    keys: tuple[Column, ...]

    # --- running ------------------------------------------------------------------------------------------

    def build(self) -> Operator:
        """What runs on slices. It raises ``PlanError`` for what it cannot do: plans build it once for that."""
        raise NotImplementedError

    def tables(self) -> tuple[Layout, ...]:
        """The tables of a slice."""
        return self.build().layouts

    @property
    def peers(self) -> tuple[str, ...]:
        """Stages whose slice it looks into while it applies."""
        return ()

    @property
    def calls_users(self) -> bool:
        """Whether an epoch runs code that is not ours, and can fail by it."""
        return False

    def calling(self, function: bytes | None, parameters: str | None) -> Self | None:
        """The same with another function, or with other parameters (None: as they are); None: it calls no function."""
        return None

    @property
    def limit(self) -> int | None:
        """How many rows it shows of a group; None: all that there are."""
        return None

    def limited(self, limit: int) -> Self:
        """The same that shows so many."""
        raise NotImplementedError

    @property
    def empties(self) -> bool:
        """Whether it can be emptied between two epochs: nothing that it gets then is taken back later, and all that it
        has put out and may take back, it can take back at once."""
        return not self.updates and not self.takes_back

    @property
    def holds_rows_by_key(self) -> bool:
        """Whether it has one row for a key, that others may look up."""
        return False

    @property
    def unbounded(self) -> str | None:
        """Why its state grows with every row, and what bounds it; None where it does not."""
        return None

    @property
    def undivided(self) -> str | None:
        """Why its state cannot be cut into units, each of which comes back by itself, and what there is instead; None
        where it can."""
        return f"{self.label} is not known to come back unit by unit: use hf.Delta"

    # --- ahead of it, in Spark ----------------------------------------------------------------------------

    def partials(self) -> Partials | None:
        """What Spark may aggregate before rows cross to Python; None: they must come whole."""
        return None

    def cut(self) -> Cut | None:
        """What a task may leave out of its rows."""
        return None

    # --- the graph ----------------------------------------------------------------------------------------

    @property
    def label(self) -> str:
        """What it is, for people who look at a plan."""
        return self.kind

    @property
    def takes_back(self) -> bool:
        """Whether its input carries ``_d``: rows of it may be taken back."""
        return False

    @property
    def updates(self) -> bool:
        """Whether rows that it put out may be taken back."""
        return False

    @property
    def complete(self) -> bool:
        """Whether it can give all rows there are, and not only those that changed."""
        return False

    @property
    def windowed(self) -> bool:
        """Whether all rows of a window come in one epoch, and then none."""
        return False

    @property
    def timed(self) -> bool:
        """Whether its rows have to do with event time at all: windows by clock or rows have their own."""
        return True

    def bounds(self, name: str, inputs: Sequence[Reading], ports: Mapping[str, Sequence[str]]) -> Mapping[str, Columns]:
        """Which columns of each output may be taken as time by whoever reads it; ``ports`` has the timestamps there."""
        return {}

    def sized(self, slices: int) -> Self:
        """The same for a job of so many slices."""
        return self

    def overflowing(self, how: str) -> Self:
        """The same with what a start says of results that are too large for their type."""
        return self

    @property
    def makes_null(self) -> bool:
        """Whether results that are too large for their type are null, by what a start said."""
        return False

    # --- between two runs ---------------------------------------------------------------------------------

    def described(self) -> dict[str, Any]:
        """What a store notes of it for people, beside its level: no program reads it."""
        said = {name: value for name, value in to_plain(self).items() if name not in ("keys", "function", "overflow")}
        return {"kind": self.kind, "keys": shown_keys(self), **said}

    def essence(self) -> Self:
        """What of it the log and the state depend on: equal for specs that read and keep the same."""
        return self

    def mendable(self, *, above: bool, null: bool) -> Self:
        """The essence, without what may be another for an epoch that failed to be finished: ``above`` where the stage
        is on the level that failed or above it, ``null`` where results that are too large become null now."""
        return self.essence()

    def difference(self, asked: Self) -> Difference:
        """What it is to go on as ``asked``, which is of the same kind."""
        refused = unlike("key columns", ", ".join(shown_keys(self)), ", ".join(shown_keys(asked)))
        before, now = to_plain(self), to_plain(asked)
        for name in now:
            if name not in self.free and name != "keys":
                refused += unlike(name, before.get(name), now[name])
        return Difference(refused=tuple(refused))

    def reshaped(self, table: int, copy: pa.RecordBatch) -> pa.RecordBatch:
        """A copy of one of its tables whose columns have just come or gone, as it must be."""
        return copy

    @property
    def sharpened(self) -> tuple[str, ...]:
        """Results that stores of the first format had to other last digits than they would be computed now."""
        return ()


def unlike(what: str, stored: Any, asked: Any) -> list[str]:
    return [] if stored == asked else [f"{what}: {stored} in the store, {asked} now"]


def shown_keys(spec: Spec) -> list[str]:
    return [f"{key.name}: {key.type}" for key in spec.keys]
