"""Results that have become more exact since a store's first epochs.

What is computed now of state of the first format may have other last digits than what was put out then. A stage that
follows changes holds the rows of then, and what is taken back must be one of them: such a job cannot go on.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from holdfast.errors import StoreError
from holdfast.plan.graph import outputs

if TYPE_CHECKING:
    from holdfast.plan.compile import PlannedStage

FIRST_EXACT = 2
"""The store's format since when sums and variances are as they are now."""


def refuse_readers(planned: Iterable[PlannedStage], format: int) -> None:
    """Where a stage of a store of this format follows changes of results that have become more exact since."""
    if format >= FIRST_EXACT:
        return
    stages = {stage.plan.name: stage for stage in planned}
    for name, stage in stages.items():
        for below in (output.stage.name for item in stage.inputs if item.updating for output in outputs(item.node)):
            if named := stages[below].plan.operator.sharpened:
                raise StoreError(
                    f"Stage '{name}' follows the changes of stage '{below}', whose '{named[0]}' an earlier version of "
                    "Holdfast, which wrote this store, computed to other last digits: rows that it put out then could "
                    "not be taken back now.",
                    safe="Nothing was changed.",
                    todo="Go on with the version that wrote the store, or begin with a new store.",
                )
