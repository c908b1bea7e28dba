"""The states a user's function may declare: as attributes of its class, or as ``state=`` of ``process``.

>>> class Visits:
...     count = value("bigint", default=0)
...     pages = map("string", "bigint", ttl="1 day")
...
...     def rows(self, key, rows, context):
...         context.state.count += len(rows)
>>> [spec.name for spec in specs(Visits)]
['count', 'pages']

Types are Spark's (``bigint``, ``decimal(10,2)``, ``timestamp`` …). A state that is empty, None or equal to its default
is not there, and a key with no state and no timer is forgotten.
"""

from __future__ import annotations

import json
import keyword
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NoReturn

from pyspark import cloudpickle

from holdfast.errors import PlanError
from holdfast.invariants import some
from holdfast.safety.intervals import seconds_of
from holdfast.state.codec import ValuesCodec, one, pickle_by_value
from holdfast.state.typed import StateSpec
from holdfast.state.types import required
from holdfast.state.values import WrongValueError

_REFUSED = "nothing was started or written."
pickle_by_value(cloudpickle.dumps)  # for states that are kept in this process: tests, and a graph that changes


class Declaration:
    """One declared state; its name is the attribute's. The state itself is on ``context.state``, never on ``self``."""

    def __init__(self, spec: StateSpec) -> None:
        self.spec = spec

    def __set_name__(self, owner: type, name: str) -> None:
        self.spec = replace(self.spec, name=name)

    def __get__(self, held: Any, owner: type | None = None) -> Declaration:
        if held is not None:
            self._refuse()
        return self

    def __set__(self, held: Any, value: Any) -> None:
        self._refuse()

    def _refuse(self) -> NoReturn:
        name = self.spec.name
        raise AttributeError(f"the state of a key is context.state.{name}, not self.{name}")


def value(type: str, default: Any = None, *, ttl: str | None = None, by: str = "event") -> Declaration:
    """A single value: ``context.state.count += 1``. None takes it back to its default."""
    kind = required(type, "a value state")
    packed = None
    if default is not None:
        try:
            packed = one(ValuesCodec(kind), default)
        except WrongValueError as error:
            raise PlanError(
                f"the default of a state does not fit it: {error}.", safe=_REFUSED, todo=f"give a {kind.name}."
            ) from None
    return _declared(StateSpec("", "value", kind.name, default=packed), ttl, by)


def map(keys: str, values: str, *, ttl: str | None = None, by: str = "event") -> Declaration:
    """A dict. It is read and written whole: keep it to some thousand entries, or make its keys keys of the stage."""
    required(keys, "the keys of a map state"), required(values, "a map state")
    return _declared(StateSpec("", "map", values, keys), ttl, by)


def list(of: str, *, ttl: str | None = None, by: str = "event") -> Declaration:
    """A list."""
    required(of, "a list state")
    return _declared(StateSpec("", "list", of), ttl, by)


def queue(of: str, *, ttl: str | None = None, by: str = "event") -> Declaration:
    """A ``collections.deque``: ``append`` and ``popleft``."""
    required(of, "a queue state")
    return _declared(StateSpec("", "queue", of), ttl, by)


def window(
    rows: int | None = None, time: str | None = None, *, of: str, ttl: str | None = None, by: str = "event"
) -> Declaration:
    """The last ``rows`` values (a deque: ``append(value)``), or those of a time (``append(value, at)``, by event time).

    A time window forgets by itself, wholly so when the watermark has passed its newest value by ``time``.
    """
    required(of, "a window state")
    if (rows is None) == (time is None) or (time is not None and ttl is not None):
        raise PlanError(
            "a window state has either rows= or time=, and a ttl only with rows=.",
            safe=_REFUSED,
            todo="write window(rows=10, of='double') or window(time='1 hour', of='double').",
        )
    if time is not None:
        return Declaration(StateSpec("", "time", of, limit=_micros(time, "the time of a window state")))
    rows = some(rows, "a number of rows")
    if isinstance(rows, bool) or not isinstance(rows, int) or rows < 1:
        raise PlanError(f"a window state of {rows!r} rows.", safe=_REFUSED, todo="give a number from 1 on.")
    return _declared(StateSpec("", "rows", of, limit=rows), ttl, by)


def pickled(*, ttl: str | None = None, by: str = "event") -> Declaration:
    """Any object that ``pickle`` can carry, None at first. Unchecked and slower than the typed states, and bound to
    the versions of the classes it holds: an explicit choice.
    """
    return _declared(StateSpec("", "pickled"), ttl, by)


def specs(function: Any, state: Mapping[str, Declaration] | None = None) -> tuple[StateSpec, ...]:
    """The states of a class, an object or (with ``state``) a function, in the order they are written."""
    owner = function if isinstance(function, type) else type(function)
    found: dict[str, Declaration] = {}
    for base in reversed(owner.__mro__):
        found |= {name: held for name, held in vars(base).items() if isinstance(held, Declaration)}
    found |= dict(state or {})
    for name, held in found.items():
        if not name.isidentifier() or name.startswith("_") or keyword.iskeyword(name):
            raise PlanError(
                f"a state cannot be called '{name}'.",
                safe=_REFUSED,
                todo="use a Python name that begins with a letter.",
            )
        if not isinstance(held, Declaration):
            raise PlanError(
                f"state '{name}' is a {type(held).__name__}.", safe=_REFUSED, todo="declare it: value('bigint'), …"
            )
    return tuple(replace(held.spec, name=name) for name, held in found.items())


def _declared(spec: StateSpec, ttl: str | None, by: str) -> Declaration:
    if by not in ("event", "clock"):
        raise PlanError(f"a ttl by {by!r}.", safe=_REFUSED, todo="count it by='event' or by='clock'.")
    return Declaration(replace(spec, ttl=0 if ttl is None else _micros(ttl, "the ttl of a state"), by=by))


def _micros(span: str, what: str) -> int:
    found = round(seconds_of(span) * 1e6) if isinstance(span, str) else 0
    if found <= 0:
        raise PlanError(f"{what} cannot be {span!r}.", safe=_REFUSED, todo="give a time such as '1 hour' or '500 ms'.")
    return found


def compiled(function: Any, state: Mapping[str, Declaration] | None) -> tuple[bytes, tuple[StateSpec, ...]]:
    """The function as containers get it, and the states it declares."""
    try:
        made: bytes = cloudpickle.dumps(function)  # type: ignore[no-untyped-call]
    except PlanError:
        raise
    except Exception as error:
        name = getattr(function, "__name__", type(function).__name__)
        raise PlanError(
            f"{name} cannot be sent to containers: {type(error).__name__}: {str(error).splitlines()[0]}",
            safe=_REFUSED,
            todo="let it refer to nothing that only the driver has: a session, DataFrames, the job, open files, locks.",
        ) from error
    return made, specs(function, state)


def parameters_text(given: Mapping[str, Any]) -> str:
    """The parameters of a function as containers get them."""
    try:
        if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
            raise TypeError("they are names and values")
        return json.dumps(dict(given), sort_keys=True, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise PlanError(
            f"These cannot be the parameters of a function: {error}.",
            safe=_REFUSED,
            todo="give a dict of what JSON can say: numbers, texts, true and false, None, lists and dicts of these.",
        ) from None
