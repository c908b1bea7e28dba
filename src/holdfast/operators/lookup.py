"""``key_by(...).lookup(stage)``: every row with what another stage holds for its key, as of the same epoch.

Both stages are cut into the same slices by the same hash, and a slice's stages live on one container, so the answer is
next door: no row travels for it. The other stage is on a lower level, so that it has applied the epoch before; what it
holds then is as determined as what the log holds, and a replay finds it again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from holdfast.errors import PlanError
from holdfast.operators.bounds import Columns, Reading
from holdfast.operators.draft import Draft, all_columns, refuse_unlike_keys, refuse_updating
from holdfast.operators.keyed import KeyedOperator, refuse_doubles, typed
from holdfast.operators.spec import Column, Spec
from holdfast.state.columns import Arena, Array
from holdfast.state.keys import KeyRows
from holdfast.state.rows import Rows
from holdfast.state.slice import MAIN, Work
from holdfast.state.table import Layout


@dataclass(frozen=True)
class LookupSpec(Spec):
    """``peer`` is the other stage, ``found`` the columns it holds beside the key; ``how`` is left or inner."""

    kind = "lookup"
    free = frozenset({"values", "peer", "found", "how"})  # it holds nothing

    keys: tuple[Column, ...]
    values: tuple[Column, ...]
    peer: str
    found: tuple[Column, ...]
    how: str = "left"

    @classmethod
    def drafted(cls, draft: Draft, peer: str, held: Spec, *, how: str) -> LookupSpec:
        refuse_updating(draft, "a lookup")
        item = draft.inputs[0]
        if not held.holds_rows_by_key:
            raise PlanError(
                f"Stage '{peer}' cannot be looked into: it holds no single row for a key.",
                safe="Nothing was started.",
                todo="Look into a running aggregate (key_by(...).agg(...)); hf.last keeps the newest value of a key.",
            )
        refuse_unlike_keys(item.keys, held.keys, f"'{draft.name}' and of '{peer}'")
        all_columns(item)
        found = held.build().output_types()[len(held.keys) :]
        columns = tuple(Column(name, kind) for name, kind in found)
        return cls(item.keys, tuple(item.values.plain), peer, columns, how)

    def build(self) -> LookupOperator:
        return LookupOperator(self)

    @property
    def label(self) -> str:
        return f"lookup in {self.peer}"

    @property
    def peers(self) -> tuple[str, ...]:
        return (self.peer,)

    def bounds(self, name: str, inputs: Sequence[Reading], ports: Mapping[str, Sequence[str]]) -> Mapping[str, Columns]:
        return {MAIN: inputs[0].columns}


class LookupOperator(KeyedOperator):
    """Keeps nothing of its own."""

    def __init__(self, spec: LookupSpec) -> None:
        super().__init__(spec.keys, [spec.values])
        if spec.how not in ("left", "inner"):
            raise PlanError(f"there is no lookup '{spec.how}'.", todo="use 'left' or 'inner'.")
        self.spec = spec
        self._found = typed(spec.found, "column")
        self.outputs = {MAIN: (*self.keys, *self.values[0], *self._found)}
        self.state = self.keys
        self.layouts: tuple[Layout, ...] = (Layout(self.codec.words, self.codec.tail, ()),)
        refuse_doubles([name for name, _ in self.outputs[MAIN]])

    def apply(self, work: Work, *inputs: Rows | None) -> None:
        (rows,) = inputs
        if rows is None or not len(rows):
            return
        known, held = work.peers[self.spec.peer].lookup(rows.keys)
        at = np.flatnonzero(known) if self.spec.how == "inner" else np.arange(len(rows))
        mine = [*self.codec.encode(rows.keys.take(at)), *self.payloads[0].arrays(rows.values, at)]
        # Where each row's answer stands among those that were found; null where there is none.
        where = pa.array(np.cumsum(known) - 1, mask=~known).take(pa.array(at))
        theirs = [held.column(name).take(where) for name, _ in self._found]
        work.emit(pa.RecordBatch.from_arrays([*mine, *theirs], schema=self.output_schema))

    def finish(self, keys: KeyRows, columns: Sequence[Array], arenas: Sequence[Arena | None]) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays(self.codec.encode(keys), schema=self.state_schema)
