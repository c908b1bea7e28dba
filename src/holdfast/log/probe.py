"""Whether a location keeps what the protocol stands on, tried before anything of a job is written there.

Two rivals create one fresh name, and exactly one may win. What counts is whose bytes are there afterwards: an object
store may lose the answer to a request that it has carried out, and then tells the winner that somebody else was first.
Before that the name is looked for, so that a location that remembers for a while that there was no such file is found
out. An NFS client remembers such names, too, but not against its own doing: only a second machine could show it, so
there the mount's options decide.
"""

from __future__ import annotations

import os
import re
import threading
import time
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.errors import StoreError

if TYPE_CHECKING:
    from holdfast.log.store import Store

TRIES = 3
SEEN_SECONDS = 2.0
"""How long a file may stay unseen after it was created."""

PROBED = re.compile(r"probe-[0-9a-f]+")
"""What a start leaves behind that dies while it tries."""
_NFS = re.compile(r"nfs4?")
_HARMLESS = re.compile(r"lookupcache=(none|pos|positive)|noac")


def probe(store: Store) -> None:
    """Refuse a store where rivals are not told apart, or where a new file stays unseen."""
    if store.is_local:
        refuse_forgetful_mount(os.path.realpath(store.uri), _mounts())
    for last in (*[False] * (TRIES - 1), True):
        name = f"probe-{uuid.uuid4().hex}"
        try:
            winners, found = _rivals(store, name)
        except StoreError:
            if last:
                raise
            continue
        finally:
            store.delete([name])
        if len(winners) > 1 or (found is not None and winners != [found]):
            raise StoreError(
                f"This store cannot decide between two writers of one file: {len(winners)} of 2 were told that they "
                f"had created it, at {store.uri}",
                safe="Nothing of the job was written.",
                todo="Use a location with an atomic create: a local folder or HDFS, for instance.",
            )
        if found is not None:
            return
    raise StoreError(
        f"A file that was created at {store.uri} cannot be seen {SEEN_SECONDS:.0f} s later: somebody on the way "
        "remembers that there was none.",
        safe="Nothing of the job was written.",
        todo="Turn the caching of names that do not exist off (in the gateway or proxy before the store), or use "
        "another location.",
    )


def _rivals(store: Store, name: str) -> tuple[list[bytes], bytes | None]:
    """Two create one name, which has been looked for before: who was told to have won, and whose bytes are there."""
    store.read_if_present(name)
    start = threading.Barrier(2)
    won: dict[bytes, bool] = {}
    failed: list[BaseException] = []

    def rival(data: bytes) -> None:
        start.wait()
        try:
            won[data] = store.put_if_absent(name, data)
        except BaseException as error:
            failed.append(error)

    rivals = [threading.Thread(target=rival, args=(uuid.uuid4().bytes,)) for _ in range(2)]
    for thread in rivals:
        thread.start()
    for thread in rivals:
        thread.join()
    if failed:
        raise failed[0]
    return [data for data, was in won.items() if was], _seen(store, name)


def _seen(store: Store, name: str) -> bytes | None:
    deadline = time.monotonic() + SEEN_SECONDS
    while (found := store.read_if_present(name)) is None and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


def refuse_forgetful_mount(path: str, mounts: Iterable[str]) -> None:
    """Refuse an NFS mount whose client remembers names that do not exist: a driver on another machine could take the
    job over, and this one would look for its file and not find it. ``mounts`` is what ``/proc/self/mountinfo`` says."""
    found: tuple[str, str, str] | None = None
    for line in mounts:
        fields, _, rest = line.partition(" - ")
        where, kind, options = fields.split()[4], rest.split()[0], ",".join((fields.split()[5], rest.split()[-1]))
        where = re.sub(r"\\(\d{3})", lambda octal: chr(int(octal[1], 8)), where)
        inside = where == "/" or path == where or path.startswith(where + "/")
        if inside and (found is None or len(where) >= len(found[0])):  # the later one hides the earlier
            found = where, kind, options
    if found is None:
        return
    where, kind, options = found
    if _NFS.fullmatch(kind) and not any(_HARMLESS.fullmatch(one) for one in options.split(",")):
        raise StoreError(
            f"The store {path} is on {where}, an NFS mount that remembers which files do not exist: a driver that was "
            "replaced by one on another machine would not see that for up to a minute.",
            safe="Nothing was written.",
            todo="Mount it with lookupcache=positive.",
        )


def _mounts() -> list[str]:
    try:
        return Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:  # not Linux
        return []
