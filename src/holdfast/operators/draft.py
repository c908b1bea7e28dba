"""A stage on its way from what a user asked for to its spec, as its kind sees it (``plan.draft`` is the real one).

Every kind has a function ``drafted`` that takes a draft and what the verb was told, asks for the columns that it wants
of the rows, and checks what only it can check. A column that is not there is an error on the user's line.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from holdfast.errors import PlanError
from holdfast.operators.spec import Column

Given = Any
"""A name, or an expression of Spark's: whatever a user may name a column by. Nothing here looks into it."""


class DraftValues(Protocol):
    """The value columns of an input, each once however many ask for it."""

    @property
    def plain(self) -> list[Column]: ...

    def add(self, given: Given, role: str, *, hashed: bool = False) -> int:
        """The number of that column; ``role`` is what it would have been, for the error."""

    def kind(self, given: Given, role: str) -> str:
        """Its type."""


class DraftInput(Protocol):
    """One input: its keys, and the columns of its rows."""

    @property
    def keys(self) -> tuple[Column, ...]: ...

    @property
    def values(self) -> DraftValues: ...

    @property
    def columns(self) -> list[str]: ...

    @property
    def key_names(self) -> list[str]: ...

    @property
    def time(self) -> int | None:
        """The number of the value column with the event time, once it was taken."""

    @property
    def updating(self) -> bool:
        """Whether its rows can be taken back."""


class Draft(Protocol):
    """The stage."""

    @property
    def name(self) -> str: ...

    @property
    def ansi(self) -> bool: ...

    @property
    def inputs(self) -> Sequence[DraftInput]: ...

    @property
    def updating(self) -> bool: ...

    @property
    def ports(self) -> list[str]:
        """Its outputs; further ones are added to it."""

    def take_time(self, given: Given | None, port: int = 0) -> int | None:
        """The column with the event time of an input, as one of its values."""


def refuse_updating(draft: Draft, what: str) -> None:
    if draft.updating:
        raise PlanError(
            f"Stage '{draft.name}' is {what} over rows that can be taken back.",
            safe="Nothing was started.",
            todo="Make them final first: windows with mode='append' (the default) put out rows that stay.",
        )


def refuse_unlike_keys(one: Sequence[Column], other: Sequence[Column], whose: str) -> None:
    if [key.type for key in one] != [key.type for key in other]:
        raise PlanError(
            f"The keys of {whose} have unlike types: "
            f"{', '.join(key.type for key in one)} and {', '.join(key.type for key in other)}.",
            safe="Nothing was started.",
            todo="Cast before key_by: equal values of unlike types have unlike hashes.",
        )


def all_columns(item: DraftInput, role: str = "column", *, keys: bool = False) -> tuple[int, ...]:
    """Everything that its rows have beside the key, or with it."""
    return tuple(item.values.add(name, role) for name in item.columns if keys or name not in item.key_names)


def order_of(item: DraftInput, by: Sequence[tuple[Given, bool]], *, keys: bool = False) -> tuple[tuple[int, bool], ...]:
    """The columns to order by; all others come along."""
    order = tuple((item.values.add(value, "order"), descending) for value, descending in by)
    all_columns(item, keys=keys)
    return order
