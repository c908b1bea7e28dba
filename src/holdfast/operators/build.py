"""All operators by name: from a spec, which is plain data, to what runs on slices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa

from holdfast.operators.aggregate import AggregateOperator
from holdfast.operators.distinct import DistinctOperator, DistinctSpec
from holdfast.operators.join import JoinOperator, JoinSpec
from holdfast.operators.lookup import LookupOperator, LookupSpec
from holdfast.operators.process import ProcessOperator, ProcessSpec
from holdfast.operators.session import SessionOperator, SessionSpec
from holdfast.operators.spec import Column, StageSpec
from holdfast.operators.top_k import TopKOperator, TopKSpec
from holdfast.operators.window import WindowOperator, WindowSpec
from holdfast.operators.window_top_k import WindowTopKOperator, WindowTopKSpec
from holdfast.state.keys import KeyRows
from holdfast.state.rows import Rows
from holdfast.state.slice import MAIN, SliceOperator, SliceState


class Spec(Protocol):
    """A frozen dataclass of plain data that says what a stage does."""

    @property
    def keys(self) -> tuple[Column, ...]: ...


class Operator(SliceOperator, Protocol):
    """What a container and the plan ask of a stage's operator."""

    @property
    def state_schema(self) -> pa.Schema: ...

    def decode(self, batch: pa.RecordBatch, *, port: int = 0, partial: bool = False) -> Rows: ...

    def decode_keys(self, batch: pa.RecordBatch) -> KeyRows: ...

    def concat(self, rows: Sequence[Rows]) -> Rows: ...

    def new_slice(self) -> SliceState: ...

    def output_types(self, port: str = MAIN) -> tuple[tuple[str, str], ...]: ...

    def state_types(self) -> tuple[tuple[str, str], ...]: ...


_KINDS: Mapping[str, tuple[type[Any], type[Any]]] = {
    "aggregate": (StageSpec, AggregateOperator),
    "window": (WindowSpec, WindowOperator),
    "session": (SessionSpec, SessionOperator),
    "join": (JoinSpec, JoinOperator),
    "lookup": (LookupSpec, LookupOperator),
    "top_k": (TopKSpec, TopKOperator),
    "window_top_k": (WindowTopKSpec, WindowTopKOperator),
    "distinct": (DistinctSpec, DistinctOperator),
    "process": (ProcessSpec, ProcessOperator),
}


def spec_of(kind: str) -> type[Any]:
    return _KINDS[kind][0]


def kind_of(spec: Spec) -> str:
    return next(kind for kind, (spec_type, _) in _KINDS.items() if isinstance(spec, spec_type))


def build(spec: Spec) -> Operator:
    operator: Operator = _KINDS[kind_of(spec)][1](spec)
    return operator
