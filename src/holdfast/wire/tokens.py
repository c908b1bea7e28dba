"""Where a job's token is kept for other processes of the same user: a file that only they can read.

Never on a command line, never in the store. The file goes with the run; one that a killed driver left behind opens
nothing, since its containers are gone too.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from holdfast.errors import TokenError


def _folder() -> Path:
    base = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    folder = Path(base) / f"holdfast-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.stat()
    if found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise TokenError(
            f"The folder {folder} for tokens can be read by others.",
            safe="No token was written.",
            todo=f"Remove it, or run: chmod 700 {folder}",
        )
    return folder


def _file(job: str, incarnation: int) -> Path:
    return _folder() / f"{job}-{incarnation}.token"


def keep(job: str, incarnation: int, token: str) -> None:
    file = _file(job, incarnation)
    for old in file.parent.glob(f"{job}-*.token"):  # of drivers that were killed: nobody listens to them any more
        old.unlink(missing_ok=True)
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as out:
        out.write(token)


def find(job: str, incarnation: int) -> str:
    try:
        return _file(job, incarnation).read_text()
    except FileNotFoundError:
        raise TokenError(
            "There is no token for this job here: it is not running, or was started by another user or elsewhere.",
            safe="Nothing was read.",
            todo="Read it from the driver that runs it (run.state(...).to_df()), or as its user.",
        ) from None


def forget(job: str, incarnation: int) -> None:
    _file(job, incarnation).unlink(missing_ok=True)
