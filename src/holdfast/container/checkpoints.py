"""A container's part of a checkpoint: its slices as of one epoch, in one pack; and the look whether packs are whole.

First taken, then written. The slices are put together in a file of this machine (in memory while they are few), and
only as long as that takes is the epoch held back for them; then the store may be as slow as it likes. Written straight
to the store, every epoch that ended meanwhile left its undo sets waiting, until there was no memory left.
"""

from __future__ import annotations

import math
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO

from holdfast.container.reads import Reading
from holdfast.errors import ContainerError, EpochGone, FullDiskError
from holdfast.log.pack import Pack, PackWriter
from holdfast.log.store import Store

SPOOL_BYTES = 64 << 20
"""A larger pack is put together on disk."""
STEP_BYTES = 1 << 20
AT_ONCE = 2
"""One that was given up may still be writing, at most so many are."""


class Checkpoints:
    def __init__(self, reading: Reading, store: Store, committed: Callable[[], int]) -> None:
        self.hurried = False
        """The last one was too slow to be afforded: the next does not step back for others."""
        self._reading, self._store, self._committed = reading, store, committed
        self._lock = threading.Lock()
        self._writing: list[str] = []

    def write(self, epoch: int, slices: Sequence[int], pack: str) -> int:
        """The number of bytes, once the pack is whole and synced. A newer one overtakes those before it."""
        with self._lock:
            if len(self._writing) >= AT_ONCE:
                raise ContainerError(
                    f"{pack} was not begun: the store has not taken {', '.join(self._writing)} yet.",
                    safe="Every committed epoch; the log stays until a checkpoint is complete.",
                    todo="Look at why the store is so slow.",
                )
            self._writing.append(pack)
        try:
            with tempfile.SpooledTemporaryFile(SPOOL_BYTES, prefix="holdfast-checkpoint-") as spool:
                self._take(epoch, slices, pack, spool)
                spool.seek(0)
                return self._store.write(pack, self._parts(spool, pack))
        finally:
            with self._lock:
                self._writing.remove(pack)

    def verify(self, packs: Iterable[str]) -> int:
        """Read packs back, every byte of them. Raises on the first that is not what was written."""
        return sum(Pack.open(self._store, name).verify() for name in packs)

    def _take(self, epoch: int, slices: Sequence[int], pack: str, spool: IO[bytes]) -> None:
        reader = f"checkpoint-{pack}"  # one of this epoch that was given up may still be at it, and ends sooner
        self._reading.pin(reader, epoch, math.inf, last=True)
        try:
            for part in PackWriter().parts(self._reading.packed(epoch, slices)):
                spool.write(part)
        except EpochGone as error:
            self.hurried = True
            raise ContainerError(
                f"The checkpoint of epoch {epoch} was given up: {self._reading.explained(reader, error).what}",
                safe="Every committed epoch; the log stays until a checkpoint is complete.",
                todo="The next one takes its slices with the priority of epochs. If it goes on, have more containers, "
                "or longer epochs.",
            ) from error
        except OSError as error:
            raise FullDiskError(
                f"The checkpoint of epoch {epoch} could not be put together in {tempfile.gettempdir()}: {error}.",
                safe="Every committed epoch; the log stays until a checkpoint is complete.",
                todo="Make room there, or name another folder in the container's TMPDIR.",
            ) from error
        finally:
            self._reading.unpin(reader, self._committed())
        self.hurried = False

    def _parts(self, spool: IO[bytes], pack: str) -> Iterator[bytes]:
        while part := spool.read(STEP_BYTES):
            if self._writing[-1] != pack:
                raise ContainerError(f"{pack} was given up: {self._writing[-1]} is newer.", safe="Nothing was changed.")
            yield part
