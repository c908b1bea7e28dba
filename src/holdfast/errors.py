"""One tree of errors, by cause.

Every error says three things to the person reading it: what happened, what is safe, and what to do next. The
three parts are kept apart so that a terminal, a notebook and a log can each show them in their own way, and so
that an error raised inside a container reaches the driver whole (``to_wire`` and ``from_wire``).
"""

from __future__ import annotations

import json
import re

_STAGE = re.compile(r"Stage '([^']*)': ")


class HoldfastError(Exception):
    """The root of everything Holdfast raises on purpose."""

    def __init__(self, what: str, *, safe: str = "", todo: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.safe = safe
        self.todo = todo

    def __str__(self) -> str:
        lines = [self.what]
        if self.safe:
            lines.append(f"  Safe: {self.safe}")
        if self.todo:
            lines.append(f"  Do:   {self.todo}")
        return "\n".join(lines)

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self).__name__, self.what, self.safe, self.todo)

    def to_wire(self) -> str:
        """As text that fits into a gRPC header, which is where Flight puts it: what is too long loses its middle."""
        parts = {"what": self.what, "safe": self.safe, "todo": self.todo}
        return json.dumps({"error": type(self).__name__, **{name: _bounded(text) for name, text in parts.items()}})


class PlanError(HoldfastError):
    """The job as written cannot run: an unknown column, an unsupported type, a graph that makes no sense."""


class StoreError(HoldfastError):
    """The store cannot serve this job: it belongs to another, differs from the graph, or breaks its promises."""


class FormatError(StoreError):
    """A file of the store was written by a newer Holdfast."""


class CorruptionError(StoreError):
    """Bytes of the store are not what was written. Never skipped, always named."""


class FullDiskError(StoreError):
    """The store or its file system has no room left."""


class FencedError(HoldfastError):
    """Somebody with a higher fence has taken over; this one stops."""


class ContainerError(HoldfastError):
    """A container could not start, or died where it could not be replaced."""


class TokenError(HoldfastError):
    """A request without the right token, or for another container than the one that got it."""


class FunctionError(HoldfastError):
    """Applying an epoch raised: an overflow, or a user's own function."""

    def of(self, stage: str) -> FunctionError:
        """The same, saying which stage it was: an operator does not know that."""
        return FunctionError(f"Stage '{stage}': {self.what}", safe=self.safe, todo=self.todo)

    @property
    def stage(self) -> str | None:
        """Which stage it was, where that is known."""
        named = _STAGE.match(self.what)
        return named[1] if named else None


class VertexError(HoldfastError):
    """A vertex cannot do that: the message is too large, or whom it is for is gone, full, or not there."""


class SparkError(HoldfastError):
    """Spark failed under the job: a source, a UDF or a step raised, or its session is gone."""

    def __init__(self, what: str, *, safe: str = "", todo: str = "", details: str = "") -> None:
        super().__init__(what, safe=safe, todo=todo)
        self.details = details
        """All of what Spark said, where it said more."""


class SinkError(HoldfastError):
    """A sink failed: a user's own function, or what Spark writes to."""


class EpochGone(HoldfastError):
    """The epoch a reader asked for is no longer held."""


class JavaError(HoldfastError):
    """No usable Java."""


class BugError(HoldfastError):
    """A bug of ours, whatever the job and its functions do: something that the design rules out has happened."""

    def __init__(self, what: str, *, safe: str = "Every committed epoch.", todo: str = "") -> None:
        todo = todo or "This is a bug of Holdfast, not of the job: report it, please, with all of this text."
        super().__init__(what, safe=safe, todo=todo)


def _bounded(text: str, limit: int = 1200) -> str:
    return text if len(text) <= limit else f"{text[: limit // 2]} … {text[-limit // 2 :]}"


def _every_subclass(cls: type[HoldfastError]) -> dict[str, type[HoldfastError]]:
    found = {cls.__name__: cls}
    for sub in cls.__subclasses__():
        found.update(_every_subclass(sub))
    return found


def _rebuild(name: str, what: str, safe: str, todo: str) -> HoldfastError:
    return _every_subclass(HoldfastError).get(name, HoldfastError)(what, safe=safe, todo=todo)


def from_wire(text: str) -> HoldfastError | None:
    """The error that ``to_wire`` packed, wherever in ``text`` it stands (gRPC puts words around it)."""
    start = text.find('{"error": ')
    if start < 0:
        return None
    try:
        found, _ = json.JSONDecoder().raw_decode(text[start:])
    except ValueError:
        return None
    return _rebuild(found["error"], found["what"], found["safe"], found["todo"])
