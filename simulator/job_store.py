"""The store of a simulated job: the model's, on a disk that takes time, fills up, errs and corrupts.

Prepares, commits and manifests are frames with checksums and are written synced; a corrupt one would be an error at
once, which is why only packs are corrupted here: those are found out late, by whoever verifies or
restores.
"""

from __future__ import annotations

import random
import zlib
from ast import literal_eval
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from holdfast.errors import CorruptionError, StoreError
from holdfast.invariants import invariant
from simulator.disks import Disk
from simulator.job_model import Store

ROOM = 1 << 40
RECORD = bytes(200)
"""What a prepare, commit, manifest or routing table weighs, about."""


@dataclass
class DiskStore(Store):
    disk: Disk = field(default_factory=lambda: Disk(ROOM))
    flaky: float = 0.0
    """The share of writes that end in an error; of those, half are there all the same."""
    _corrupt: set[str] = field(default_factory=set)

    def write(self, name: str, chance: random.Random, content: bytes = RECORD) -> StoreError | None:
        """Put a file. An error that is raised: it is not there. One that is returned: it is, but nobody is told."""
        fate = chance.random()
        error = StoreError(f"An error of the disk, writing {name}.", safe="Everything that was there before.")
        if fate < self.flaky / 2:
            raise error
        self.disk.put(name, content)
        return error if fate < self.flaky else None

    def write_pack(self, name: str, states: Mapping[int, int], chance: random.Random) -> None:
        content = repr(dict(states)).encode()
        if error := self.write(name, chance, zlib.crc32(content).to_bytes(4, "big") + content):
            raise error

    def unpacked(self, file: object) -> Mapping[int, int]:
        try:
            found = self.disk.get(str(file))
        except FileNotFoundError as error:
            raise StoreError(f"{file} is gone.", safe="Nothing was changed.") from error
        if zlib.crc32(found[4:]).to_bytes(4, "big") != found[:4]:
            raise CorruptionError(f"{file} is not what was written.", safe="Nothing was changed.")
        states: Mapping[int, int] = literal_eval(found[4:].decode())
        return states

    def cut_log(self, epoch: int) -> None:
        """As the ledger does it: never above the second newest checkpoint, whatever is asked; older ones go."""
        invariant(epoch < max(self.manifests), "cut at the newest checkpoint")
        *older, second, newest = [0, 0, *sorted(self.manifests)]
        self.cut = max(self.cut, min(epoch, second))
        kept = {*self.manifests[newest].values(), *self.manifests.get(second, {}).values()}
        for old in older:
            self.manifests.pop(old, None)
        for name in self._packs():
            if int(name.split("/")[1].split(".")[0]) < second and name not in kept:
                self.disk.delete(name)

    def check_checkpoint(self, epoch: int) -> None:
        """As far as it can be read."""
        for slice_ in range(self.slices):
            with suppress(StoreError):
                self.check_checkpointed(epoch, slice_)

    # ------------------------------------------------------------------------------------------------- faults

    def corrupt_pack(self, chance: random.Random) -> str | None:
        """One at a time: if both checkpoints that are kept cannot be read, nothing can bring the job back."""
        packs = self._packs()
        self._corrupt &= set(packs)
        if not packs or self._corrupt:
            return None
        name = chance.choice(packs)
        self.disk.corrupt(name, chance)
        self._corrupt.add(name)
        return name

    def make_room(self) -> None:
        self.disk.capacity = ROOM

    def _packs(self) -> list[str]:
        return [name for name in self.disk.names() if name.startswith("pack/")]
