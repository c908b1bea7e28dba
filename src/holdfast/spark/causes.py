"""What really happened, out of what Spark made of it.

A user's exception reaches us under layers: Spark's own, the stage failure's, the Python worker's with a traceback as
text. People look for the one that their own code or their database raised, so that comes first.
"""

from __future__ import annotations

LONGEST = 1000


def own_words(error: BaseException) -> str:
    """The innermost exception, as ``ValueError: no such product``."""
    java = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    if java is None:
        return _bounded(type(error).__name__, str(error))
    while (inner := java.getCause()) is not None and not inner.equals(java):
        java = inner
    name, message = str(java.getClass().getSimpleName()), str(java.getMessage() or "")
    if "Traceback (most recent call last)" in message:
        return _last_raised(message)
    return _bounded(name, message.split("\n\tat ", 1)[0])


def _last_raised(text: str) -> str:
    """What a traceback ends with: the first line after its frames, and what belongs to it."""
    lines = text.rstrip().splitlines()
    frames = [at for at, line in enumerate(lines) if line.startswith((" ", "Traceback"))]
    raised = lines[frames[-1] + 1 :] if frames and frames[-1] + 1 < len(lines) else lines[-1:]
    return _cut("\n".join(line for line in raised if line))


def _bounded(name: str, message: str) -> str:
    return _cut(f"{name}: {message}" if message else name)


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} …"
