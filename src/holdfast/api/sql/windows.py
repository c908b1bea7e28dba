"""Windows of time in ``GROUP BY``: Spark's ``window`` and ``session_window``, and ELF's ``WINDOWING``."""

from __future__ import annotations

from dataclasses import dataclass

from sqlglot import exp

from holdfast.api.sql.grammar import WINDOWING
from holdfast.api.sql.scope import Relation, Scope
from holdfast.api.sql.text import Node
from holdfast.api.sql.times import as_span, microseconds
from holdfast.api.windows import Window, session, sliding, tumbling

START, END = "window_start", "window_end"
_CALLS = ("window", "session_window")
_DECLARE = (
    "Say so where the stream is read: FROM clicks WATERMARK ts DELAY OF INTERVAL 10 SECONDS, "
    "job.read(…, time='ts', lateness='10 s') or df.withWatermark('ts', '10 seconds')."
)


@dataclass(frozen=True)
class Windows:
    """What rows are grouped into beside their keys."""

    call: Node | None
    window: Window
    time: str | None
    lateness: str

    @property
    def name(self) -> str:
        """What Spark calls the column."""
        return "session_window" if self.window.kind == "session" else "window"


def is_window(node: Node) -> bool:
    """A call of Spark's function, not one OVER rows."""
    return isinstance(node, exp.Anonymous) and node.name.lower() in _CALLS


def windows_of(scope: Scope, relation: Relation, call: exp.Anonymous) -> Windows:
    """The windows that a call in GROUP BY asks for."""
    text, session_call = scope.text, call.name.lower() == "session_window"
    given = call.expressions
    most = 2 if session_call else 4
    if not 2 <= len(given) <= most:
        raise text.wrong(
            call,
            f"{call.name} takes a time and {'a gap' if session_call else 'a size'}.",
            f"{call.name}(ts, '5 minutes')" + ("" if session_call else ", or window(ts, '5 minutes', '1 minute')."),
        )
    time = scope.plain(given[0])
    if time is None:
        raise text.wrong(
            given[0],
            "the time of a window must be a column as it is.",
            "Compute it in a subquery, and declare it there.",
        )
    if time not in relation.times:
        raise text.wrong(given[0], f"nothing says how late rows may be by '{time}'.", _DECLARE)
    spans = [_span(scope, one) for one in given[1:]]
    if session_call:
        return Windows(call, session(spans[0]), time, relation.times[time])
    offset = spans[2] if len(spans) > 2 else "0 s"
    same = len(spans) == 1 or spans[0] == spans[1]
    window = tumbling(spans[0], offset=offset) if same else sliding(spans[0], spans[1], offset=offset)
    return Windows(call, window, time, relation.times[time])


def windowing(scope: Scope, relation: Relation, node: exp.Select) -> Windows | None:
    """ELF's clause: by the event time that the stream has declared, by the clock if it has none."""
    if WINDOWING not in node.meta:
        return None
    place, size, every = node.meta[WINDOWING]
    if len(relation.times) > 1:
        raise scope.text.wrong(
            place,
            "WINDOWING does not say by which time.",
            f"GROUP BY window(…, '{size}') by one of {', '.join(relation.times)}.",
        )
    spans = []
    for said in [size] if every is None else [size, every]:
        micros = microseconds(said)
        if not micros:
            raise scope.text.wrong(place, f"'{said}' is no span of time.", "WINDOWING 300 SECONDS EVERY 30 SECONDS")
        spans.append(as_span(micros))
    window = tumbling(spans[0]) if len(spans) == 1 else sliding(spans[0], spans[1])
    time, lateness = next(iter(relation.times.items()), (None, "0 s"))
    return Windows(None, window, time, lateness)


def _span(scope: Scope, node: Node) -> str:
    said = node.name if isinstance(node, exp.Literal) else scope.text.cut(node)
    micros = microseconds(said)
    if micros is None:
        raise scope.text.wrong(
            node, "this is no span of time of a fixed length.", "Write '5 minutes', '1 hour', '1 day'."
        )
    return as_span(micros)
