"""Checks of what the design promises, which stay on whatever the interpreter is told.

``assert`` goes with ``python -O``, and every check of the protocol with it: a master that is wrong would then write
what it should have stopped at. So these are plain calls. What fails them is a bug of ours, ``Impossible``, and never
the fault of whoever runs the job.
"""

from __future__ import annotations

from typing import TypeVar

Thing = TypeVar("Thing")


class Impossible(AssertionError):
    """No ``HoldfastError``, which callers expect and may go on after: users get it as a ``BugError``."""

    story = ""
    """What led to it, as far as it was kept."""


def invariant(condition: object, what: str) -> None:
    """``what`` says what has happened that cannot. It is made either way: keep it cheap where many pass by."""
    if not condition:
        raise Impossible(what)


def some(thing: Thing | None, what: str) -> Thing:
    """The thing, which is there: for a type checker as well."""
    if thing is None:
        raise Impossible(what)
    return thing
