"""An epoch's calls of a user's function: what it is given, what it gives back, and what happens when it raises."""

from __future__ import annotations

import datetime as dt
import pickle
import traceback
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from holdfast.errors import FunctionError, PlanError, StoreError
from holdfast.invariants import Impossible
from holdfast.operators.outputs import WrongOutputError, batches
from holdfast.operators.timers import KINDS, MOST_FIRINGS, Agenda, Timer
from holdfast.state.codec import json_text
from holdfast.state.columns import Ints
from holdfast.state.feedback import Feedback
from holdfast.state.slice import MAIN, NEVER, Work
from holdfast.state.typed import Gathered, KeyState, WrongStateError
from holdfast.state.values import bounded, micros, moment, shown, to_array

if TYPE_CHECKING:
    from holdfast.operators.process import ProcessOperator

_SAFE = "nothing of this epoch was kept; the state is as it was before."
NOT_THEIRS = (Impossible, StoreError)
"""What a call may meet that no function is to blame for: no dead letter, and nothing that another function mends."""


def loaded(pickled: bytes) -> Any:
    """What the driver was given, in the process that is to call it."""
    try:
        return pickle.loads(pickled)
    except Exception as error:
        raise PlanError(
            f"The function of a process() cannot be read by a container: {type(error).__name__}: {error}",
            safe="nothing was started or written.",
            todo="containers import modules by their names: have it installed where they run or, of what they do not "
            "have, send the code: pyspark.cloudpickle.register_pickle_by_value(module).",
        ) from error


class Function:
    """A user's function: a class or an object with ``rows`` (and ``timer``), or a plain function of rows."""

    def __init__(self, given: Any) -> None:
        self.name: str = getattr(given, "__qualname__", type(given).__qualname__)
        held = given() if isinstance(given, type) else given
        self.rows = getattr(held, "rows", held)
        self.timer = getattr(held, "timer", None)
        if not callable(self.rows):
            raise PlanError(
                f"{self.name} is no function and has no method 'rows'.",
                safe="nothing was started or written.",
                todo="give process() a function f(key, rows, context), or a class with such a method.",
            )


class FiredTimer:
    """The timer that a call of ``timer`` is about."""

    __slots__ = ("kind", "name", "time")

    def __init__(self, name: str, kind: str, time: dt.datetime) -> None:
        self.name, self.kind, self.time = name, kind, time


class Context:
    """What a user's function has besides its key and rows. Times are datetimes in UTC, and may be given as such or as
    microseconds since 1970.

    ``state`` has the key's states as attributes; ``fired`` is the timer in a call of ``timer``, else None.
    """

    __slots__ = ("_at", "_calls", "fired", "state")

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._at = 0
        self.state: Any = None
        self.fired: FiredTimer | None = None

    @property
    def watermark(self) -> dt.datetime | None:
        """How far event time is: for rows as of the epoch before, for timers as of this one; None before any row."""
        time = self._calls.work.time
        reached = time.late if self.fired is None else time.watermark
        return None if reached == NEVER else moment(reached)

    @property
    def clock(self) -> dt.datetime:
        """The epoch's processing time; the same for all its calls, and when it is applied again."""
        return moment(self._calls.work.time.clock)

    @property
    def parameters(self) -> Mapping[str, Any]:
        """What ``process(parameters=…)`` or ``run.update(parameters=…)`` said last: the same for all calls of an
        epoch."""
        return self._calls.operator.parameters

    @property
    def feedback(self) -> Feedback:
        """What the epoch before has fed back (``stream.feedback(name)``): rows by that name, the same for all calls of
        an epoch, and when it is applied again. None before the first epoch."""
        return self._calls.feedback

    def emit(self, row: Any, to: str = MAIN) -> None:
        """Put a dict or an Arrow batch out on that output."""
        put_out = self._calls.put.get(to)
        if put_out is None:
            raise ValueError(f"there is no output '{to}', only {sorted(self._calls.put)}")
        put_out.append(row)

    def set_timer(self, at: dt.datetime | int, name: str = "", kind: str = "event") -> None:
        """Have ``timer`` called when that time is reached. The same time, name and kind again is the same timer."""
        self._calls.asked.append((True, self._timer(at, name, kind)))

    def clear_timer(self, at: dt.datetime | int, name: str = "", kind: str = "event") -> None:
        """Forget a timer; none at all is fine too."""
        self._calls.asked.append((False, self._timer(at, name, kind)))

    def _timer(self, at: dt.datetime | int, name: str, kind: str) -> Timer:
        operator = self._calls.operator
        if operator.function.timer is None:
            raise TypeError(f"{operator.function.name} sets a timer and has no method timer(key, time, context)")
        if kind not in KINDS or not isinstance(name, str):
            raise ValueError(
                f"a timer has a text for its name and is one of {', '.join(KINDS)}, not {name!r}, {kind!r}"
            )
        if kind == "event" and operator.spec.time is None:
            raise ValueError("the rows have no event time that would reach this timer; use kind='clock'")
        return Timer(self._at, KINDS.index(kind), micros(at), name)


class Calls:
    """All calls of one slice in one epoch."""

    def __init__(
        self, operator: ProcessOperator, work: Work, gathered: Gathered, keys: Sequence[Any], agenda: Agenda
    ) -> None:
        self.operator, self.work = operator, work
        self.put: dict[str, list[Any]] = {port: [] for port, _ in operator.spec.outputs}
        self.asked: list[tuple[bool, Timer]] = []
        self.feedback = Feedback(work.feedback)
        self._gathered, self._keys, self._agenda = gathered, keys, agenda
        self._context = Context(self)
        # Whose call each row of the main output is: its length before each call, and the key of that call.
        self._lengths: list[int] = []
        self._callers: list[int] = []
        self._letters: list[tuple[Any, str, str]] = []
        self._letters_wanted = operator.spec.errors == "dead_letter"

    def rows(self, given: Any, ats: list[int], starts: list[int], stops: list[int]) -> None:
        """Call the function for every key that has rows."""
        function, by_arrow = self.operator.function.rows, self.operator.spec.rows == "arrow"
        call = self._guarded if self._letters_wanted else self._call
        for at, start, stop in zip(ats, starts, stops, strict=True):
            call(at, function, given.slice(start, stop - start) if by_arrow else given[start:stop])

    def timers(self) -> None:
        """Call the function for every timer that is due, those that it sets meanwhile too."""
        call = self._guarded if self._letters_wanted else self._call
        while (timer := self._agenda.fire()) is not None:
            if self._agenda.endless(timer.at):
                raise FunctionError(
                    f"{self.operator.function.name}: more than {MOST_FIRINGS} timers of key"
                    f" {shown(self._keys[timer.at])} fired in one epoch; the last is '{timer.name}'"
                    f" at {moment(timer.time).isoformat()}.",
                    safe=_SAFE,
                    todo="let timer() set the next timer for a time after context.watermark (or context.clock).",
                )
            time = moment(timer.time)
            self._context.fired = FiredTimer(timer.name, KINDS[timer.kind], time)
            call(timer.at, self.operator.function.timer, time)
        self._context.fired = None

    def put_out(self) -> None:
        """Everything that was put out, as Arrow."""
        for port, rows in self.put.items():
            if not rows:
                continue
            try:
                for batch in batches(self.operator.outputs[port], rows):
                    self.work.emit(batch, port=port)
            except WrongOutputError as error:
                raise self._wrong_output(port, error) from None
        if self._letters:
            self._put_letters()

    def store(self, moments: Ints) -> None:
        try:
            self._gathered.scatter(moments, self.work.time.clock)
        except WrongStateError as error:
            raise FunctionError(
                f"{self.operator.function.name}, key {shown(self._keys[error.at])}: {error}.",
                safe=_SAFE,
                todo="write what the state was declared for, or declare another type.",
            ) from None

    # -- one call

    def _call(self, at: int, function: Any, given: Any) -> None:
        try:
            self._run(at, function, given)
        except NOT_THEIRS:
            raise
        except Exception as error:
            raise FunctionError(
                f"{self._told(error, at)} {_of_what(given, error)}",
                safe=_SAFE,
                todo="correct the function and start again: it goes on with this epoch. From then on such rows can go "
                "to an output of their own (errors='dead_letter').",
            ) from error
        if self.asked:
            self._arrange()

    def _guarded(self, at: int, function: Any, given: Any) -> None:
        """A call that has all its effects, or none but dead letters."""
        image = self._gathered.image(at)
        lengths = {port: len(rows) for port, rows in self.put.items()}
        try:
            self._run(at, function, given)
            for port, rows in self.put.items():
                if len(rows) > lengths[port]:
                    batches(self.operator.outputs[port], rows[lengths[port] :])
            self._gathered.settle(at)
        except NOT_THEIRS:
            raise
        except Exception as error:
            self._gathered.restore(at, image)
            for port, rows in self.put.items():
                del rows[lengths[port] :]
            self.asked.clear()
            told = self._told(error, at)
            self._letters += [(self._keys[at], told, row) for row in _letters(given, self._context.fired)]
        else:
            self._arrange()

    def _run(self, at: int, function: Any, given: Any) -> None:
        context, put = self._context, self.put[MAIN]
        context.state, context._at = self._gathered.objects[at], at
        self._lengths.append(len(put))
        self._callers.append(at)
        result = function(self._keys[at], given, context)
        if result is None:
            return
        if isinstance(result, dict | pa.RecordBatch | pa.Table):
            put.append(result)
        else:
            for row in result:
                put.append(row)

    def _arrange(self) -> None:
        for wanted, timer in self.asked:
            (self._agenda.set if wanted else self._agenda.clear)(timer)
        self.asked.clear()

    # -- what went wrong

    def _told(self, error: Exception, at: int) -> str:
        """What was raised, for which key, and where in the user's code."""
        last = traceback.format_exception_only(error)[-1].strip()
        if isinstance(error, AttributeError) and f"'{KeyState.__name__}' object" in last:
            last += f" (the states are: {', '.join(state.name for state in self.operator.spec.states) or 'none'})"
        method = "rows" if self._context.fired is None else "timer"
        return f"{self.operator.function.name} ({method}), key {shown(self._keys[at])}: {bounded(last)}{_place(error)}."

    def _wrong_output(self, port: str, error: WrongOutputError) -> FunctionError:
        whose = ""
        if port == MAIN:
            at = self._callers[bisect_right(self._lengths, error.at) - 1]
            whose = f", key {shown(self._keys[at])}"
        output = f"output '{port}'" if port else "its output"
        return FunctionError(
            f"{self.operator.function.name}{whose}: a row for {output} is not as declared: {error}.",
            safe=_SAFE,
            todo="put out dicts with exactly these columns: "
            + ", ".join(f"{name} {kind.name}" for name, kind in self.operator.outputs[port])
            + ".",
        )

    def _put_letters(self) -> None:
        fields = self.operator.outputs["errors"]
        keys = [key if len(self.operator.keys) > 1 else (key,) for key, _, _ in self._letters]
        columns = [*zip(*keys, strict=True), *list(zip(*self._letters, strict=True))[1:]]
        arrays = [to_array(kind, list(column)) for (_, kind), column in zip(fields, columns, strict=True)]
        self.work.emit(pa.RecordBatch.from_arrays(arrays, names=[name for name, _ in fields]), port="errors")
        self.work.count("dead letters", len(self._letters))


def _of_what(given: Any, error: Exception) -> str:
    """The row it was about: the one that a variable of the function holds, or the first it was given."""
    if isinstance(given, dt.datetime):
        return f"Timer of {given.isoformat()}."
    if isinstance(given, pa.RecordBatch):
        return f"Rows: {given.num_rows}, the first {shown(given.slice(0, 1).to_pylist())}."
    known = {id(row): row for row in given}
    found = None
    for frame in _frames(error.__traceback__):
        found = next((known[id(one)] for one in frame.tb_frame.f_locals.values() if id(one) in known), found)
    if found is None:
        return f"The first of its {len(given)} rows: {shown(given[0])}."
    return f"Row: {shown(found)}."


def _place(error: Exception) -> str:
    frames = _frames(error.__traceback__)
    if isinstance(error, WrongStateError | WrongOutputError) or not frames:
        return ""
    code = frames[-1].tb_frame.f_code
    return f" (line {frames[-1].tb_lineno} of {code.co_filename}, in {code.co_name})"


def _frames(trace: TracebackType | None) -> list[TracebackType]:
    found = []
    while trace is not None:
        found.append(trace)
        trace = trace.tb_next
    return found


def _letters(given: Any, fired: FiredTimer | None) -> list[str]:
    """What a failed call was given, a JSON text a row."""
    if fired is not None:
        rows: list[Any] = [{"timer": fired.name, "kind": fired.kind, "time": fired.time.isoformat()}]
    else:
        rows = given.to_pylist() if isinstance(given, pa.RecordBatch) else given
    return [json_text(row) for row in rows]
