"""What Spark says when it fails, in a few lines: the exception that somebody wrote or will look for comes first.

Spark wraps an exception of a task into one of the job, that into one of the call, and what ``foreachBatch`` raises into
one of the query; with every layer come its stack, and the plan. All of it is in ``SparkError.details``.
"""

from __future__ import annotations

import re

from pyspark.errors import PySparkException, PythonException

from holdfast.errors import SparkError

_TRACEBACK = "Traceback (most recent call last):\n"
_FRAME = re.compile(r'^  File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>.+)$', re.MULTILINE)
_RAISED = re.compile(r"^[A-Za-z_][\w.]*(?:: .*)?$", re.MULTILINE)
_JAVA = re.compile(r"^(?:: |Caused by: )(?P<kind>[\w.$]+)(?:: (?P<text>.*))?$", re.MULTILINE)
_WRAPPED = re.compile(r"terminated with exception: (?P<text>.*?)(?: SQLSTATE: XXKST|\n=== Streaming|\Z)", re.DOTALL)
_STATE = re.compile(r"\s*SQLSTATE: \w+")
_ADVICE = "Mend that, then start the job again: it goes on with the rows of this epoch."


def own_words(error: Exception) -> str:
    """The exception that somebody wrote or will look for, whatever Spark made of it."""
    text = str(error)
    what = _python(text) if isinstance(error, PythonException) or _TRACEBACK in text else None
    return what or _java(text) or _first(error, text)


def spark_failed(error: Exception, doing: str) -> SparkError:
    """``doing`` says what it was about: "epoch 3 was read"."""
    return SparkError(
        f"{own_words(error).rstrip('.')}. That was raised while {doing}.",
        safe="Every committed epoch. Nothing of this one is in any state or sink.",
        todo=_ADVICE,
        details=str(error),
    )


def _python(text: str) -> str | None:
    """The innermost exception of a Python worker, and where it was raised."""
    _, _, block = text.rpartition(_TRACEBACK)
    raised = _RAISED.search(block)
    if raised is None:
        return None
    frames = list(_FRAME.finditer(block, 0, raised.start()))
    place = "" if not frames else " ({file}, line {line}, in {function})".format(**frames[-1].groupdict())
    return f"{raised[0]}{place}"


def _java(text: str) -> str | None:
    """The outermost exception of the JVM that says something, and the innermost cause of it."""
    told = [(one["kind"].rpartition(".")[2], _STATE.sub("", one["text"] or "").strip()) for one in _JAVA.finditer(text)]
    if not told:
        return None
    first, last = told[0], told[-1]
    cause = f" (caused by {last[0]}: {last[1]})" if last != first and last[1] not in first[1] else ""
    return f"{first[0]}: {first[1]}{cause}"


def _first(error: Exception, text: str) -> str:
    if found := _WRAPPED.search(text):
        text = found["text"]
    lines = [line for line in _STATE.sub("", text).splitlines() if line.strip()]
    kind = "" if isinstance(error, PySparkException) else f"{type(error).__name__}: "
    return f"{kind}{lines[0].strip() if lines else 'no reason was given'}"
