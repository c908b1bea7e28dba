"""The epoch as users see it: the number that a function of theirs is given, and a column between a stage and a sink.

A number alone does not say whose epoch it is: a new store counts from 1 again, and so does the job next door. Whoever
remembers epochs must remember with them the job, which is one store's for ever, and the sink.

The column is a name that no frame has. A step that uses it is run on its rows with one more column of that name, which
holds the number of the epoch and is gone after the step. So it costs nothing where nobody asks for it, and a frame that
is no output on its way to a sink cannot resolve it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

MARKER = "_holdfast_epoch"
_NOW: ContextVar[int | None] = ContextVar("epoch", default=None)

Run = Callable[[Any, tuple[str, ...]], Any]


class Epoch(int):
    """The number of an epoch, and whose it is: ``job`` is the id of the job's store, ``sink`` the sink's name."""

    job: str
    sink: str
    marked: set[str]  # tables in which hf.once has marked it since this call of the function began

    def __new__(cls, number: int, job: str, sink: str) -> Epoch:
        self = super().__new__(cls, number)
        self.job, self.sink, self.marked = job, sink, set()
        return self

    def __reduce__(self) -> tuple[object, ...]:
        return Epoch, (int(self), self.job, self.sink)


def epoch() -> Column:
    """The number of the epoch as a column (``epoch``, bigint), in ``select``, ``with_column`` and ``where`` between a
    stage and a sink: ``totals.with_column("epoch", hf.epoch()).write("jdbc", …)``.
    """
    return F.col(MARKER).alias("epoch")


def mentions(*given: object) -> bool:
    """Whether one of these columns asks for the epoch."""
    return any(MARKER in _text(one) for one in given)


def _text(given: object) -> str:
    try:
        return str(given)
    except NotImplementedError:  # a column of another kind than Spark's own in this process
        return ""


@contextmanager
def at(number: int) -> Iterator[None]:
    """Steps that are run meanwhile see this epoch."""
    token = _NOW.set(number)
    try:
        yield
    finally:
        _NOW.reset(token)


def seeing(run: Run) -> Run:
    """The same step, with the epoch among the columns that it sees."""

    def seen(frame: Any, hidden: tuple[str, ...]) -> Any:
        found: Any = run(frame.withColumn(MARKER, F.lit(_NOW.get()).cast("bigint")), hidden)
        return found.drop(MARKER)

    return seen
