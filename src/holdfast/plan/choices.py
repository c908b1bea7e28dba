"""Options with a few possible values: one that is none of them is refused, with those there are."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from holdfast.errors import PlanError
from holdfast.safety.intervals import seconds_of

P = ParamSpec("P")
R = TypeVar("R")
_NOTHING = "Nothing was started."
_PART = re.compile(r"\d+(?:\.\d+)?\s*[a-z]+", re.IGNORECASE)
_TRIGGERS = "Use a time ('1 second'), 'availableNow' or 'once', or a mapping such as {'processingTime': '1 second'}."


def one_of(what: str, given: object, *choices: object) -> None:
    """Refuse what is none of them. True and 1 are two things here."""
    if any(given == choice and type(given) is type(choice) for choice in choices):
        return
    shown = [repr(choice) for choice in choices]
    raise PlanError(f"{what} cannot be {given!r}.", safe=_NOTHING, todo=f"Use {', '.join(shown[:-1])} or {shown[-1]}.")


def without_on(verb: Callable[P, R]) -> Callable[P, R]:
    """``on=`` means keys in Spark and SQL, so a verb that goes by event time says so instead of taking it for one."""

    @wraps(verb)
    def checked(*args: P.args, **options: P.kwargs) -> R:
        if "on" in options:
            raise PlanError(
                f"{verb.__name__} has no option 'on'.",
                safe=_NOTHING,
                todo="Write time= for the event time; the keys are those of key_by.",
            )
        return verb(*args, **options)

    return checked


def span_of(what: str, given: object) -> float:
    """The seconds of a span of time such as "7 days".

    >>> span_of("keep", "1 hour 30 minutes")
    5400.0
    """
    if seconds := _seconds(given):
        return seconds
    raise PlanError(f"{what} cannot be {given!r}.", safe=_NOTHING, todo="Use a span of time, such as '7 days'.")


def trigger_of(given: Mapping[str, Any] | str | None) -> dict[str, Any]:
    """A trigger as Spark's ``DataStreamWriter.trigger`` takes it.

    >>> trigger_of("1 minute 30 seconds"), trigger_of("availableNow"), trigger_of(None)
    ({'processingTime': '90000 milliseconds'}, {'availableNow': True}, {})
    """
    if given is None or (isinstance(given, Mapping) and not given):
        return {}
    if isinstance(given, str):
        given = {given: True} if given in ("availableNow", "once") else {"processingTime": given}
    if not isinstance(given, Mapping) or len(given) != 1:
        raise PlanError(f"A trigger cannot be {given!r}.", safe=_NOTHING, todo=_TRIGGERS)
    ((kind, value),) = given.items()
    if kind in ("realTime", "continuous"):
        raise PlanError(
            f"The trigger '{kind}' cannot carry a Holdfast job: it has no micro-batches to make epochs of.",
            safe=_NOTHING,
            todo="Use processingTime, availableNow or once.",
        )
    if kind in ("availableNow", "once") and value is True:
        return {kind: True}
    if kind == "processingTime" and (seconds := _seconds(value)) is not None:
        return {kind: f"{round(seconds * 1000)} milliseconds"}
    raise PlanError(f"A trigger cannot be {{{kind!r}: {value!r}}}.", safe=_NOTHING, todo=_TRIGGERS)


def _seconds(span: object) -> float | None:
    """Of "1 minute 30 seconds"; None if it is no span of time."""
    text = span.strip().lower().removeprefix("interval ") if isinstance(span, str) else ""
    parts = _PART.findall(text)
    if not parts or _PART.sub("", text).strip():
        return None
    sums = [seconds_of(part) for part in parts]
    known = all(found or float(re.match(r"[\d.]+", part)[0]) == 0 for part, found in zip(parts, sums, strict=True))  # type: ignore[index]
    return sum(sums) if known else None
