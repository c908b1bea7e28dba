"""Errors by their cause: a bug of ours, a full disk or a dead peer is not the fault of somebody's function."""

from __future__ import annotations

import errno

from holdfast.errors import BugError, ContainerError, FullDiskError, HoldfastError
from holdfast.wire.client import Unreachable

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_SAFE = "Every committed epoch; nothing of the one in flight is visible."


def named(error: BaseException, where: str) -> HoldfastError:
    """``error`` as one of ours; ``where`` says who met it: "A container"."""
    told = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if isinstance(error, HoldfastError):
        return error
    if isinstance(error, Unreachable):
        return ContainerError(
            f"{where} could not reach another process: {error}",
            safe=_SAFE,
            todo="Look at run.status().events for what became of it; the next start of the job goes on.",
        )
    if isinstance(error, MemoryError):
        return ContainerError(
            f"{where} has no memory left: {told}",
            safe=_SAFE,
            todo="Start the job again with more containers, or with more memory for each.",
        )
    if isinstance(error, OSError) and error.errno in _FULL:
        return FullDiskError(
            f"{where} found no room left: {told}",
            safe=_SAFE,
            todo="Free some room, then start the job again: it continues where it was.",
        )
    if isinstance(error, OSError):
        return ContainerError(
            f"{where} was refused something by its system: {told}",
            safe=_SAFE,
            todo="Mend what it says (files, sockets, limits), then start the job again.",
        )
    return BugError(f"{where} failed at its work: {told}", safe=_SAFE)
