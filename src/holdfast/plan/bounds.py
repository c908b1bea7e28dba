"""Which columns of a stage's rows may be taken as time by whoever reads them: through the steps, and by its kind.

What has no bound (``operators.bounds``) is no time, and is refused when the stage that wants it is drawn: rows would be
late there without anybody having been.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holdfast.operators.bounds import Columns, Reading
from holdfast.operators.spec import Spec
from holdfast.plan.graph import Leaf, Loop, Node, Output, Source, Step, Union, leaves

TIMES = ("timestamp", "timestamp_ntz")


def traced(node: Node, column: str) -> dict[Leaf, str | None]:
    """What a column is called at each leaf it comes from, unchanged; None: it is made on the way."""
    match node:
        case Source() | Output() | Loop():
            return {node: column}
        case Step():
            before = node.before(column)
            return dict.fromkeys(leaves(node.parent)) if before is None else traced(node.parent, before)
        case Union():
            found = traced(node.left, column)
            for leaf, name in traced(node.right, node.across[column]).items():
                found[leaf] = name if found.get(leaf, name) == name else None
            return found


def bounds_of(
    name: str, spec: Spec, inputs: Sequence[Reading], ports: Mapping[str, Sequence[str]]
) -> dict[str, Columns]:
    """The bounds of a stage's outputs; ``ports`` has the timestamps among the columns of each."""
    found = spec.bounds(name, inputs, ports) if spec.timed else {}
    return {
        port: {column: bounds for column, bounds in found.get(port, {}).items() if column in columns}
        for port, columns in ports.items()
    }
