"""What is left of a run that a bug of ours has ended: an error that says so, and the story in the store."""

from __future__ import annotations

import traceback

from holdfast.errors import BugError, HoldfastError
from holdfast.invariants import Impossible
from holdfast.log.ledger import Ledger


def bug(error: BaseException, ledger: Ledger, incarnation: int) -> BugError:
    """The error for people. What led to it is beside the log, or in the error itself if it cannot be written."""
    what = str(error) if isinstance(error, Impossible) else f"{type(error).__name__}: {error}"
    text = "".join(traceback.format_exception(error))
    try:
        left = f"What led to it is in {ledger.leave_story(incarnation, text)}: report it, please, with that file."
    except HoldfastError as unwritten:
        left = f"Report it, please, with these lines, which could not be kept ({unwritten.what}):\n{text}\n"
    return BugError(
        f"The master has met something that cannot happen: {what}.",
        safe="Every committed epoch; nothing was written after that.",
        todo=f"This is a bug of Holdfast, not of the job. {left} Starting the job again goes on after the last commit.",
    )
