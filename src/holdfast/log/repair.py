"""Spark's own checkpoint after a power cut: what must be written again, and what must go.

Spark syncs none of its files, so after a cut each may be missing, empty or torn, while our block of the same batch is
there. But the block has the files of its batch, byte for byte, and knows which notes of the sources there were; what
it does not have was synced before it. So everything up to the newest block can be had again, or up to the note that
sinks have begun with the batch after it. What came after it
nobody depends on. A batch that was only planned is tried again as it was if nothing is missing: its offsets are whole,
and so are just the notes that they speak of (a batch that fails must not grow with every start). Else it is planned
once more: its offsets go, and the notes stay as far as they are whole: what a reader has listed is in one batch with
what it lists next.

Whether a file is whole is told by the checksums that Hadoop's local file system keeps beside each (``.7.crc`` for
``7``); a file without any is one that we wrote, or one that lost them. Nothing here touches a disk: from what the
store says and what was found comes what to do, and doing it twice, or half and then again, comes to the same.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

METADATA = "metadata"
SOURCES = "sources/"
COMMITTED = b'v1\n{"nextBatchWatermarkMs":0}'
"""What Spark notes of a batch that is done, in a query that keeps no state in Spark."""

_CHUNK = 512
_COMPACT = ".compact"

Files = Mapping[str, bytes]
"""Names in Spark's checkpoint, checksums included, and what is in them."""


@dataclass(frozen=True)
class Standing:
    """What the store says of Spark's checkpoint. Batches are -1 where there is none."""

    committed: int
    """The batch of the newest block."""
    prepared: int
    """The same; or the one after it, if it can be no other any more."""
    names: frozenset[str] = frozenset()
    """The sources' notes that the newest block, or what was begun after it, knew of."""


@dataclass(frozen=True)
class Mending:
    write: dict[str, bytes]
    drop: tuple[str, ...]
    missing: tuple[str, ...]
    """What is needed and nobody has."""

    def __bool__(self) -> bool:
        return bool(self.write or self.drop)

    def __str__(self) -> str:
        written, dropped = (", ".join(sorted(names)) or "nothing" for names in (self.write, self.drop))
        return f"{written} written again; {dropped} dropped, to be planned again"


def checksum_name(name: str) -> str:
    folder, slash, base = name.rpartition("/")
    return f"{folder}{slash}.{base}.crc"


def checksums(content: bytes) -> bytes:
    """What Hadoop's local file system writes beside a file."""
    sums = (zlib.crc32(content[at : at + _CHUNK]) for at in range(0, len(content), _CHUNK))
    return b"crc\0" + struct.pack(">i", _CHUNK) + b"".join(struct.pack(">I", one) for one in sums)


def current(names: Iterable[str]) -> frozenset[str]:
    """Of the sources' notes, those that count: in a folder that Spark compacts, from the newest compact file on."""
    found = list(names)
    newest: dict[str, int] = {}
    for name in found:
        if name.endswith(_COMPACT) and (number := _number(name)) is not None:
            newest[_folder(name)] = max(number, newest.get(_folder(name), 0))
    return frozenset(name for name in found if (_number(name) or 0) >= newest.get(_folder(name), 0))


def wanting(standing: Standing, disk: Files) -> frozenset[str]:
    """The files that are needed and not known to be whole: a prepare has to say what is in them."""
    return frozenset(name for name in _needed(standing) if _state(name, disk) != "whole")


def mend(standing: Standing, disk: Files, carried: Files) -> Mending:
    """``carried`` has what prepares say of the files that are ``wanting``, as far as they say it."""
    write: dict[str, bytes] = {}
    drop: list[str] = []
    missing: list[str] = []
    wanted = wanting(standing, disk)
    for name in sorted(wanted):
        if name in carried:
            write[name] = carried[name]
        elif name == f"offsets/{standing.committed - 1}":
            continue  # Spark may be told to keep no more than one
        elif _state(name, disk) == "bad" and (_number(name) is not None or name == METADATA):
            missing.append(name)  # without checksums it is one that we wrote, and synced
    if standing.committed >= 0 and _state(done := f"commits/{standing.committed}", disk) != "whole":
        write[done] = disk[done] if _is_object(disk.get(done, b"").removeprefix(b"v1\n")) else COMMITTED
    # Spark cannot read it either if only its checksums are torn.
    torn = METADATA in disk and (_state(METADATA, disk) == "bad" or not _is_object(disk[METADATA]))
    if standing.prepared < 0 and torn:
        drop.append(METADATA)
    drop += _torn_notes(standing, disk)
    undisturbed = not wanted and not drop
    for name in disk:
        number = _number(name) if name.startswith("offsets/") else None
        if number is None or number <= standing.prepared:
            continue
        if not (undisturbed and number == standing.prepared + 1 and _all_there(name, disk)):
            drop.append(name)  # it may speak of notes that are gone
    return Mending(write, tuple(drop), tuple(missing))


def _needed(standing: Standing) -> frozenset[str]:
    if standing.prepared < 0:
        return frozenset()
    batches = {standing.prepared, standing.committed, standing.committed - 1}  # Spark looks at the last two
    return standing.names | {METADATA} | {f"offsets/{batch}" for batch in batches if batch >= 0}


def _torn_notes(standing: Standing, disk: Files) -> list[str]:
    """The sources' notes from after the newest prepare, from the first one of a folder that is not whole."""
    folders: dict[str, list[tuple[int, str]]] = {}
    for name in current({name for name in disk if name.startswith(SOURCES) and _is_plain(name)} | standing.names):
        if name in disk and name not in standing.names:
            folders.setdefault(_folder(name), []).append((_number(name) or 0, name))
    spare: list[str] = []
    for notes in folders.values():
        notes.sort()
        states = [_state(name, disk) == "whole" for _, name in notes]
        if not all(states):
            spare += [name for _, name in notes[states.index(False) :]]
    return spare


def _all_there(offsets: str, disk: Files) -> bool:
    """Whether the notes are those that a batch was planned with.

    The offset of a file source is the number of its last note; other sources have one note, 0, of where they began.
    Notes that a cut takes only make the numbers smaller, so where there is one folder for each offset and the numbers
    are the same, none is missing. (Places of a plan that share one reader have more offsets than folders: not told.)
    """
    if _state(offsets, disk) != "whole":
        return False
    folders: dict[str, list[int]] = {}
    for name in current(name for name in disk if name.startswith(SOURCES) and _is_plain(name)):
        if (number := _number(name)) is None or _state(name, disk) == "bad":
            return False
        folders.setdefault(_folder(name), []).append(number)
    if any(max(notes) - min(notes) != len(notes) - 1 for notes in folders.values()):
        return False
    planned = [_last_note(line) for line in disk[offsets].decode().splitlines()[2:] if line != "-"]
    return sorted(planned) == sorted(max(notes) for notes in folders.values())


def _last_note(offset: str) -> int:
    found = json.loads(offset) if _is_object(offset.encode()) else {}
    return int(found.get("logOffset", 0))


def _state(name: str, disk: Files) -> Literal["whole", "unsaid", "bad"]:
    content, sums = disk.get(name), disk.get(checksum_name(name))
    if not content:
        return "bad"
    if sums is None:
        return "unsaid"
    return "whole" if sums == checksums(content) else "bad"


def _is_object(content: bytes) -> bool:
    try:
        return isinstance(json.loads(content), dict)  # cut anywhere it is none
    except ValueError:
        return False


def _is_plain(name: str) -> bool:
    return not name.rpartition("/")[2].startswith(".")


def _folder(name: str) -> str:
    return name.rpartition("/")[0]


def _number(name: str) -> int | None:
    base = name.rpartition("/")[2].removesuffix(_COMPACT)
    return int(base) if base.isdecimal() else None
