"""Disks that fill up, corrupt and forget: a store of named bytes for code under test.

A disk never says that it has corrupted something: finding that out is the reader's work. What was not synced is gone
after a crash, or half there. Writing takes the time that the disk's speed says.
"""

from __future__ import annotations

import random

from holdfast.errors import FullDiskError


class Disk:
    def __init__(self, capacity: int, bytes_per_second: float = 500e6) -> None:
        self.capacity = capacity
        self.bytes_per_second = bytes_per_second
        self._files: dict[str, bytes] = {}
        self._unsynced: dict[str, None] = {}

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
        if not sync:
            self._unsynced[file] = None
        return len(content) / self.bytes_per_second

    def get(self, file: str) -> bytes:
        try:
            return self._files[file]
        except KeyError:
            raise FileNotFoundError(file) from None

    def delete(self, file: str) -> None:
        self._files.pop(file, None)
        self._unsynced.pop(file, None)

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
        """The machine stops: each file that was not synced is gone, cut short or, with luck, there."""
        for file in self._unsynced:
            fate, content = chance.randrange(3), self._files[file]
            if fate == 0:
                del self._files[file]
            elif fate == 1:
                self._files[file] = content[: chance.randrange(len(content) + 1)]
        self._unsynced.clear()
