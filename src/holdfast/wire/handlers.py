"""Who does what is asked, by its type: methods say it with their annotations, and a table finds them.

    class Handlers:
        @handler
        def undo(self, job: HostedJob, call: Undo) -> Undone: ...

A method takes what it is annotated with, and nothing else is written down anywhere. What comes before that parameter is
given by whoever owns the table (a container: the job that the call is about), to those that ask for it.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from holdfast.wire.codec import Tagged
from holdfast.wire.messages import Call, Instruction

F = TypeVar("F", bound=Callable[..., Any])
_MARK = "_holdfast_handler"


def handler(function: F) -> F:
    setattr(function, _MARK, True)
    return function


class Handler(NamedTuple):
    run: Callable[..., Any]
    about: int
    """So many parameters come before what it takes."""


class Table:
    """All handlers of some objects, by the type of what they take."""

    def __init__(self, *rooms: object) -> None:
        self._found: dict[type[Any], Handler] = {}
        for room in rooms:
            self.add(room)

    def add(self, room: object) -> None:
        marked = [name for name in dir(type(room)) if hasattr(getattr(type(room), name), _MARK)]
        for method in (getattr(room, name) for name in marked):
            kind, about = _taken(method)
            if kind in self._found:
                raise TypeError(f"{kind.__name__} has a handler already: {self._found[kind].run.__qualname__}")
            self._found[kind] = Handler(method, about)

    def find(self, kind: type[Any]) -> Handler | None:
        return self._found.get(kind)

    @property
    def kinds(self) -> frozenset[type[Any]]:
        return frozenset(self._found)


def _taken(method: Any) -> tuple[type[Any], int]:
    """What it takes, and how many parameters come before that."""
    hints = typing.get_type_hints(method)
    for number, name in enumerate(inspect.signature(method).parameters):
        kind = hints[name]
        if isinstance(kind, type) and issubclass(kind, Tagged | Instruction):
            if issubclass(kind, Call) and hints["return"] is not kind.answer:
                raise TypeError(f"{method.__qualname__} answers {hints['return']}, {kind.__name__} wants {kind.answer}")
            return kind, number
    raise TypeError(f"{method.__qualname__} takes no call, ticket, push or instruction")
