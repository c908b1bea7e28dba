"""What the rows of a block are in terms of: the inputs of stages that take rows of sources, and what they keep of them.

Two graphs of one layout can read each other's blocks: functions may be others, and sinks. Where it is another, blocks
that nobody has read yet cannot be read any more.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable

from holdfast.operators.stage import StagePlan
from holdfast.wire.codec import to_plain


def layout_of(stages: Iterable[StagePlan], slices: int) -> str:
    said = []
    for stage in stages:
        numbers = [place.number for place in stage.inputs if place.level == 1]
        if numbers:
            operator = stage.operator.mendable(above=True, null=True)
            said.append([stage.name, numbers, operator.kind, to_plain(operator), to_plain(stage.time)])
    told = json.dumps([slices, sorted(said, key=lambda one: str(one[0]))], sort_keys=True, default=str)
    return hashlib.sha256(told.encode()).hexdigest()[:32]
