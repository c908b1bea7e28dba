"""The folder of a run's Unix sockets: nobody but its user may enter it, and it goes with the run.

It is made under the folder for temporary files, or, where the path of that is too long for the address of a socket,
under another one. The driver removes it when it stops. After a ``kill -9`` of the driver the nursery of its containers
does, or they themselves; if all of them died in one moment, the next start of any job on the machine. Whoever removes
what is not its own first knocks at the master's door: a folder is only abandoned when nobody listens there any more.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from holdfast.errors import ContainerError
from holdfast.wire.locations import MASTER, opening, refuses

PREFIX = "hf-"
MOST_BYTES = 103
"""Of a socket's path: macOS has room for 104 with the zero at its end, Linux for 108."""
INSIDE = len(f"/{PREFIX}12345678/c12345-12345678")
"""What is put behind the folder that it is made in."""
OTHERS = ("/tmp", "/var/tmp", "/dev/shm")
YOUNG_SECONDS = 60.0
"""So old is what a start removes: a door that is just being opened is there a moment before it answers."""
KNOCK_SECONDS = 0.2


def make() -> str:
    """A new one, of mode 0700; what killed runs have left behind beside it goes."""
    tried = []
    for base in dict.fromkeys(_bases()):
        try:
            made = tempfile.mkdtemp(prefix=PREFIX, dir=base)
        except OSError as error:
            tried.append(f"{base} ({error.strerror})")
            continue
        _sweep(Path(base))
        return made
    raise ContainerError(
        "There is no folder for the sockets of driver and containers: the address of one has room for "
        f"{MOST_BYTES - INSIDE} bytes of a plain path. Tried: {', '.join(tried) or tempfile.gettempdir()}.",
        safe="Nothing was started.",
        todo="Set TMPDIR to a short path that you can write to, or start with listen='127.0.0.1'.",
    )


def remove(folder: str) -> None:
    """The master's door last: what is left of an interrupted removal is known by it."""
    with contextlib.suppress(OSError):  # somebody else is at it
        for path in Path(folder).iterdir():
            if path.name != MASTER:
                path.unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


def clear(folder: str, patience: float) -> None:
    """Remove it if its driver is gone; ``patience`` is for one that is just dying: its pipes may close before its door.

    No harm is done if it lives.
    """
    deadline = time.monotonic() + patience
    while os.path.isdir(folder):
        if _is_abandoned(folder):
            remove(folder)
            return
        if time.monotonic() >= deadline:
            return
        time.sleep(0.02)


def _bases() -> Iterator[str]:
    for base in (tempfile.gettempdir(), *OTHERS):
        plain = re.fullmatch(r"[A-Za-z0-9_./-]+", base)  # Flight takes a location for a URI
        if plain and os.path.isabs(base) and len(base) + INSIDE <= MOST_BYTES:
            yield base


def _is_abandoned(folder: str) -> bool:
    return refuses(opening(folder, MASTER), KNOCK_SECONDS)


def _sweep(base: Path) -> None:
    for path in base.glob(f"{PREFIX}*"):
        try:
            found = path.lstat()
            door = path.joinpath(MASTER).lstat()
        except OSError:  # somebody else's, or gone by now
            continue
        ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and stat.S_ISSOCK(door.st_mode)
        if ours and time.time() - door.st_mtime > YOUNG_SECONDS:
            clear(str(path), 0)
