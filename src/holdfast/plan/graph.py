"""The graph a user draws: sources, stateless steps, stages and sinks.

Stateless steps are kept as functions from DataFrame to DataFrame and run by Spark; only stages are ours. A stage's rows
as another stage sees them are a changelog where they can change: each carries ``_d``, +1 for a row that is, -1 for one
that is no more. Steps must carry that column along, which is why ``select`` is told of it and ``transform`` is checked
for it. What a stage only ever adds to (closed windows, say) has no such column.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

from pyspark.sql.types import StructType

from holdfast.errors import PlanError
from holdfast.plan.epochs import Epoch
from holdfast.plan.frames import DIFF as DIFF  # the graph is where others look for it
from holdfast.plan.frames import Given, S, with_sign

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, eq=False)
class Source:
    name: str
    frame: Any  # a DataFrame, or whatever else has ``Steps``
    updating: bool = False
    """Its rows can be taken back, as those of an output: it is what a stage of another job puts out."""


@dataclass(frozen=True, eq=False)
class Step:
    """A stateless step; ``run`` gets the names of hidden columns that must survive it.

    ``before`` tells which column of the parent a column is, unchanged; None: it is made here, or nobody knows.
    ``epochal``: it asks for the number of the epoch, so its rows can only go to a sink.
    """

    parent: Node
    label: str
    run: Callable[[Any, tuple[str, ...]], Any]
    filters: bool = True
    before: Callable[[str], str | None] = lambda _: None
    epochal: bool = False
    opaque: bool = False
    """It may be anything: it may even make rows of none."""
    text: str = ""
    """What it was given, where that says all there is to it."""


@dataclass(frozen=True, eq=False)
class Union:
    """Rows of both. It goes by position: ``across`` has the name on the right of every column of the left."""

    left: Node
    right: Node
    across: Mapping[str, str]


@dataclass(frozen=True, eq=False)
class StageRows:
    """The rows of one input of a stage, and what brings them together."""

    node: Node
    keys: tuple[Given, ...]


@dataclass(frozen=True, eq=False)
class Stage:
    name: str
    inputs: tuple[StageRows, ...]


@dataclass(frozen=True, eq=False)
class Output:
    """One output of a stage. ``updating``: its rows can be taken back."""

    stage: Stage
    port: str
    updating: bool


@dataclass(frozen=True, eq=False)
class Loop:
    """Rows that the stream which closes the loop had in the epoch before."""

    name: str
    frame: Any
    """No rows, but its columns."""
    updating: ClassVar[bool] = False


Leaf = Source | Output | Loop
Node = Leaf | Step | Union


@dataclass(frozen=True)
class Named:
    """A stream that other jobs read."""

    stream: str
    keep: float | None
    """Seconds; infinite: all of it; None: until its readers have read it."""
    windowed: bool
    """All rows of a window come in one epoch."""
    whole: bool
    """The stage can give all rows that there are, for a stream that begins later than the stage."""


@dataclass(frozen=True, eq=False)
class Sink:
    name: str
    node: Node
    format: str
    mode: str
    schema: StructType
    options: Mapping[str, str] = field(default_factory=dict)
    partition_by: tuple[str, ...] = ()
    function: Callable[[DataFrame, Epoch], None] | None = None
    stamp: bool = True
    table: str = ""
    """Of Spark's catalog, where it goes to one by name."""
    after: str = ""
    """The sink that has each epoch before this one."""
    feeds: str = ""
    """What functions call its rows in the next epoch: they go into the commit, and nowhere else."""
    named: Named | None = None
    """The stream that its rows become, for other jobs."""
    closes: Loop | None = None
    """Its rows are that loop's in the next epoch, and go nowhere else."""
    max_rounds: int | None = None
    """Of what it closes: so often may rows go round in epochs without rows of sources."""

    @property
    def signed(self) -> bool:
        """Whether it has the rows that are withdrawn, too."""
        return self.named is not None and updating(self.node)


def leaves(node: Node) -> Iterator[Leaf]:
    """The sources, stages and loops that a tree of stateless steps stands on."""
    match node:
        case Source() | Output() | Loop():
            yield node
        case Step():
            yield from leaves(node.parent)
        case Union():
            yield from leaves(node.left)
            yield from leaves(node.right)


def steps(node: Node) -> Iterator[Step]:
    """The stateless steps between the leaves and here."""
    match node:
        case Step():
            yield node
            yield from steps(node.parent)
        case Union():
            yield from steps(node.left)
            yield from steps(node.right)


def outputs(node: Node) -> list[Output]:
    """The outputs of stages among the leaves."""
    return [leaf for leaf in leaves(node) if isinstance(leaf, Output)]


def loops(node: Node) -> list[Loop]:
    """The loops among the leaves."""
    return [leaf for leaf in leaves(node) if isinstance(leaf, Loop)]


def sources(node: Node) -> list[Source]:
    """The sources among the leaves."""
    return [leaf for leaf in leaves(node) if isinstance(leaf, Source)]


def part(node: Node, of: Callable[[Leaf], bool]) -> Node | None:
    """The tree without the sides of unions that stand on other leaves; None: nothing is left of it."""
    match node:
        case Source() | Output() | Loop():
            return node if of(node) else None
        case Step():
            below = part(node.parent, of)
            return node if below is node.parent else None if below is None else replace(node, parent=below)
        case Union():
            left, right = part(node.left, of), part(node.right, of)
            if left is node.left and right is node.right:
                return node
            if left is not None and right is not None:
                return replace(node, left=left, right=right)
            return right if left is None else left


def put_in(node: Node, leaf: Leaf, instead: Node) -> Node:
    """The tree with another one where a leaf was."""
    match node:
        case Source() | Output() | Loop():
            return instead if node is leaf else node
        case Step():
            return replace(node, parent=put_in(node.parent, leaf, instead))
        case Union():
            return replace(node, left=put_in(node.left, leaf, instead), right=put_in(node.right, leaf, instead))


def updating(node: Node) -> bool:
    """Whether rows of this stream can be taken back."""
    return any(leaf.updating for leaf in leaves(node))


def epochal(node: Node) -> bool:
    """Whether these rows know the number of their epoch."""
    return any(step.epochal for step in steps(node))


def opaque(node: Node) -> bool:
    """Whether there may be rows here though no leaf has any."""
    return any(step.opaque for step in steps(node))


def evaluate(node: Node, frames: Mapping[Node, S], hidden: tuple[str, ...] = ()) -> S:
    """Run the stateless steps of ``node`` over the frames of its leaves."""
    match node:
        case Source() | Output() | Loop():
            return frames[node]
        case Step():
            result: S = node.run(evaluate(node.parent, frames, hidden), hidden)
            for name in hidden:
                if name not in result.columns:
                    raise PlanError(
                        f"The step '{node.label}' drops a column that Holdfast needs: it tells new rows from withdrawn "
                        "ones, or rows of one source from those of another.",
                        todo="Use select, where and with_column there, or let the function keep every column it gets.",
                    )
            return result
        case Union():
            return united([evaluate(side, frames, hidden) for side in sides(node)], hidden)


def sides(node: Node) -> Iterator[Node]:
    """What a union is of, and unions in it."""
    if isinstance(node, Union):
        yield from sides(node.left)
        yield from sides(node.right)
    else:
        yield node


def united(rows: list[S], hidden: tuple[str, ...] = ()) -> S:
    """Two by two: a union of many on top of each other costs Spark their number squared."""
    if len(rows) == 1:
        return rows[0]
    half = (len(rows) + 1) // 2
    return union_of(united(rows[:half], hidden), united(rows[half:], hidden), hidden)


def union_of(left: S, right: S, hidden: tuple[str, ...]) -> S:
    """Spark's union goes by position; hidden columns may stand elsewhere on each side, so they come last."""
    return hidden_last(left, hidden).union(hidden_last(right, hidden))


def hidden_last(frame: S, hidden: tuple[str, ...]) -> S:
    if not hidden:
        return frame
    # Rows that are never taken back have no sign of their own where others do.
    signed: S = frame if DIFF in frame.columns or DIFF not in hidden else with_sign(frame)
    return signed.select(*[name for name in signed.columns if name not in hidden], *hidden)
