"""All kinds of operators, each registered once. What they are is in their own modules."""

from __future__ import annotations

from holdfast.operators.aggregate import StageSpec
from holdfast.operators.cumulative import CumulativeSpec
from holdfast.operators.distinct import DistinctSpec
from holdfast.operators.join import JoinSpec
from holdfast.operators.lookup import LookupSpec
from holdfast.operators.process import ProcessSpec
from holdfast.operators.session import SessionSpec
from holdfast.operators.spec import Spec
from holdfast.operators.top_k import TopKSpec
from holdfast.operators.window import WindowSpec
from holdfast.operators.window_top_k import WindowTopKSpec

KINDS: dict[str, type[Spec]] = {
    spec.kind: spec
    for spec in (
        StageSpec,
        WindowSpec,
        CumulativeSpec,
        SessionSpec,
        JoinSpec,
        LookupSpec,
        TopKSpec,
        WindowTopKSpec,
        DistinctSpec,
        ProcessSpec,
    )
}
