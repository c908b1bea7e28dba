"""The tokens of a run, and where one is kept for other processes of the same user: in a file that only they can read.

A run has one token, which driver and containers know and nobody else. Who only reads, or only brings rows, gets one
made from it for that: a container makes the same from its own, so nothing more has to be told to anybody, and who sees
one in a task cannot tell the run's from it. The file has the reader's. Tokens are on no command line, in no store and
no option. The file goes with the run; one that a killed driver left behind opens nothing, since its containers are gone
too.
"""

from __future__ import annotations

import hmac
import os
import tempfile
from pathlib import Path
from typing import Literal

from holdfast.errors import TokenError
from holdfast.wire.passes import MARK

Role = Literal["reads", "pushes"]
"""What whoever has less than the token of the run may do."""
ROLES: tuple[Role, ...] = ("reads", "pushes")


def token_for(role: Role, given: str) -> str:
    """Of the run's token, or of a pass with it: its papers stay as they are."""
    token, mark, papers = given.partition(MARK)
    return hmac.new(token.encode(), f"holdfast {role}".encode(), "sha256").hexdigest() + mark + papers


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
    """What those who read by the store may know of the run's ``token``."""
    file = _file(job, incarnation)
    for old in file.parent.glob(f"{job}-*.token"):  # of drivers that were killed: nobody listens to them any more
        old.unlink(missing_ok=True)
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as out:
        out.write(token_for("reads", token))


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
