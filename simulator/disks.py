"""Disks that fill up, corrupt, tear, forget and reorder: a store of named bytes for code under test.

A disk never says that it has corrupted something: finding that out is the reader's work. What was not synced is gone
after a crash, or half there, or as long as it should be with nothing in some of it; each file by itself, whichever was
written first. What was deleted may be back. Writing takes the time that the disk's speed says.
"""

from __future__ import annotations

import random

from holdfast.errors import FullDiskError

PAGE = 512
"""Bytes that get to the disk together."""
DELETED = 50
"""So many of the files that were deleted last may come back."""


class Disk:
    def __init__(self, capacity: int, bytes_per_second: float = 500e6) -> None:
        self.capacity = capacity
        self.bytes_per_second = bytes_per_second
        self._files: dict[str, bytes] = {}
        self._unsynced: dict[str, None] = {}
        self._deleted: dict[str, bytes] = {}

    @property
    def used(self) -> int:
        return sum(len(content) for content in self._files.values())

    def names(self) -> list[str]:
        return sorted(self._files)

    def put(self, file: str, content: bytes, sync: bool = True) -> float:
        """Writes all of it or nothing; the seconds that this takes."""
        if self.used - len(self._files.get(file, b"")) + len(content) > self.capacity:
            raise FullDiskError(
                f"No room for the {len(content):,} bytes of {file}: {self.used:,} of {self.capacity:,} are used.",
                safe="What was on the disk before is unchanged.",
                todo="Make room, or give it a larger capacity.",
            )
        self._files[file] = content
        self._unsynced.pop(file, None)
        self._deleted.pop(file, None)
        if not sync:
            self._unsynced[file] = None
        return len(content) / self.bytes_per_second

    def get(self, file: str) -> bytes:
        try:
            return self._files[file]
        except KeyError:
            raise FileNotFoundError(file) from None

    def delete(self, file: str) -> None:
        unsynced = file in self._unsynced
        self._unsynced.pop(file, None)
        if (content := self._files.pop(file, None)) is not None and not unsynced:
            self._deleted[file] = content
            while len(self._deleted) > DELETED:
                del self._deleted[next(iter(self._deleted))]

    # ------------------------------------------------------------------------------------------------- faults

    def fill(self) -> None:
        """No byte more fits, until something is deleted."""
        self.capacity = self.used

    def corrupt(self, file: str, chance: random.Random) -> None:
        """Flips one bit somewhere in a file."""
        content = bytearray(self._files[file])
        if content:
            content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
            self._files[file] = bytes(content)

    def crash(self, chance: random.Random) -> None:
        """The machine stops: each file that was not synced is gone, cut short, torn or, with luck, there; of those that
        were deleted since the last time some are back, as far as there is room."""
        for file in self._unsynced:
            fate, content = chance.randrange(4), self._files[file]
            if fate == 0:
                del self._files[file]
            elif fate == 1:
                self._files[file] = content[: chance.randrange(len(content) + 1)]
            elif fate == 2:
                self._files[file] = _torn(content, chance)
        self._unsynced.clear()
        for file, content in self._deleted.items():
            if chance.random() < 0.5 and self.used + len(content) <= self.capacity:
                self._files[file] = content
        self._deleted.clear()


def _torn(content: bytes, chance: random.Random) -> bytes:
    """Its length got there, and of its pages any."""
    pages = (content[at : at + PAGE] for at in range(0, len(content), PAGE))
    return b"".join(page if chance.random() < 0.5 else bytes(len(page)) for page in pages)
