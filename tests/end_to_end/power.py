"""Disks as a power cut may leave them.

A driver runs with ``disk.c`` in front of the system's calls, which notes what it, its JVM, Spark's workers and its
containers did to some folders. From these notes comes, for any moment of the run, a disk that a cut at that moment may
leave: what was synced is there, and of the rest anything: bytes that were not synced are there, missing, torn or zeros;
names that were given, taken or moved without a sync of their folder are there or not, each by itself or all from some
point on. That is more than any one file system does, and all that POSIX promises.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

SHIM = Path(__file__).with_name("disk.c")
COMPILERS = ("cc", "gcc", "clang")


class CannotWatch(Exception):
    """There is no compiler for the shim."""


def build_shim(folder: Path) -> Path:
    compiler = next(filter(shutil.which, COMPILERS), None)
    if compiler is None:
        raise CannotWatch(f"power cuts were not tried: none of {', '.join(COMPILERS)} is here to compile disk.c")
    made = folder / "disk.so"
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", str(made), str(SHIM), "-ldl"], check=True)
    return made


class Note(NamedTuple):
    what: str
    inode: int
    size: int
    path: str
    to: str


Change = tuple[tuple[str, bool, int | None], ...]
"""What happens at once to names of a folder: (name, whether it is there afterwards, what it stands for)."""


@dataclass
class Folder:
    """Names that last, and what was done to names since. A name stands for an inode, or for a folder: None."""

    synced: dict[str, int | None] = field(default_factory=dict)
    since: list[Change] = field(default_factory=list)

    def names(self, kept: list[Change]) -> dict[str, int | None]:
        found = dict(self.synced)
        for change in kept:
            for name, there, means in change:
                if there:
                    found[name] = means
                else:
                    found.pop(name, None)
        return found


class Recording:
    """One run, from the disk that it began with to its end."""

    def __init__(self, base: Path, roots: tuple[str, ...], shim: Path, scratch: Path) -> None:
        self.base = base
        self.roots = roots
        self._log, self._graves = scratch / "notes", scratch / "graves"
        self._graves.mkdir(parents=True)
        self._log.touch()
        self.environment = {
            "LD_PRELOAD": str(shim),
            "DISK_ROOTS": ":".join(str(base / root) for root in roots),
            "DISK_LOG": str(self._log),
            "DISK_GRAVES": str(self._graves),
        }
        self.contents: dict[int, bytes] = {}
        self._began = self._scan()
        self.notes: list[Note] = []

    def end(self) -> None:
        """The run is over: keep all that was ever written."""
        self._scan()
        for grave in self._graves.iterdir():
            self.contents[int(grave.name)] = grave.read_bytes()
        with self._log.open() as lines:
            for line in lines:
                what, inode, size, path, to = line.rstrip("\n").split("\t")
                self.notes.append(Note(what, int(inode), int(size), path, to))
        for note in self.notes:
            assert note.what not in ("truncate", "move-folder"), f"the drill has no idea of this: {note}"

    def _scan(self) -> dict[str, Folder]:
        folders = {str(self.base): Folder({root: None for root in self.roots if (self.base / root).exists()})}
        for root in self.roots:
            for folder, names, files in os.walk(self.base / root):
                found = folders[folder] = Folder(dict.fromkeys(names))
                for name in files:
                    path = os.path.join(folder, name)
                    inode = os.stat(path).st_ino
                    found.synced[name] = inode
                    self.contents[inode] = Path(path).read_bytes()
        return folders

    def after_a_cut(self, moment: int, draw: random.Random) -> tuple[dict[str, bytes], list[str]]:
        """A disk after a cut when the first ``moment`` notes had been made: files, and folders."""
        folders = {path: Folder(dict(one.synced)) for path, one in self._began.items()}
        synced = {inode: len(content) for path in self._began.values() for inode, content in self._files(path)}
        for note in self.notes[:moment]:
            self._play(note, folders, synced)
        files: dict[str, bytes] = {}
        found: list[str] = []
        torn: dict[int, bytes] = {}
        to_visit = [str(self.base)]
        for folder in to_visit:
            found.append(folder)
            one = folders.get(folder, Folder())
            for name, inode in one.names(_survivors(one.since, draw)).items():
                path = f"{folder}/{name}"
                if inode is None:
                    to_visit.append(path)
                else:
                    if inode not in torn:
                        torn[inode] = _torn(self.contents.get(inode, b""), synced.get(inode), draw)
                    files[path] = torn[inode]
        return files, found

    def _files(self, folder: Folder) -> Iterator[tuple[int, bytes]]:
        for inode in folder.synced.values():
            if inode is not None:
                yield inode, self.contents[inode]

    def _play(self, note: Note, folders: dict[str, Folder], synced: dict[int, int]) -> None:
        parent, _, name = note.path.rpartition("/")
        into, _, new = note.to.rpartition("/")
        match note.what:
            case "create":
                folders.setdefault(parent, Folder()).since.append(((name, True, note.inode),))
            case "mkdir":
                folders.setdefault(parent, Folder()).since.append(((name, True, None),))
                folders[note.path] = Folder()
            case "unlink" | "rmdir":
                folders.setdefault(parent, Folder()).since.append(((name, False, None),))
            case "link":
                folders.setdefault(into, Folder()).since.append(((new, True, note.inode),))
            case "rename" if parent == into:
                folders.setdefault(into, Folder()).since.append(((name, False, None), (new, True, note.inode)))
            case "rename":
                folders.setdefault(into, Folder()).since.append(((new, True, note.inode),))
                if note.path:
                    folders.setdefault(parent, Folder()).since.append(((name, False, None),))
            case "sync":
                synced[note.inode] = max(note.size, synced.get(note.inode, 0))
            case "sync-folder":
                one = folders.setdefault(note.path, Folder())
                folders[note.path] = Folder(one.names(one.since))


def _survivors(changes: list[Change], draw: random.Random) -> list[Change]:
    """Of the changes to a folder that were not synced, those that a cut leaves."""
    match draw.choices(("all", "none", "some", "until"), (3, 2, 2, 3))[0]:
        case "all":
            return changes
        case "none":
            return []
        case "some":
            return [change for change in changes if draw.random() < 0.5]
    return changes[: draw.randint(0, len(changes))]


def _torn(content: bytes, synced: int | None, draw: random.Random) -> bytes:
    """What is left of a file of which so many bytes were synced."""
    least = synced or 0
    if least >= len(content):
        return content
    match draw.choices(("whole", "least", "cut", "zeros"), (4, 3, 2, 1))[0]:
        case "whole":
            return content
        case "least":
            return content[:least]
        case "cut":
            return content[: draw.randint(least, len(content))]
    cut = draw.randint(least, len(content))
    return content[:cut] + bytes(len(content) - cut)


def rebuild(base: Path, roots: tuple[str, ...], files: Mapping[str, bytes], folders: list[str]) -> None:
    """Put a disk in the place of what is there."""
    for root in roots:
        shutil.rmtree(base / root, ignore_errors=True)
    for folder in folders:
        os.makedirs(folder, exist_ok=True)
    for path, content in files.items():
        Path(path).write_bytes(content)


def what_differs(files: Mapping[str, bytes], recording: Recording) -> str:
    """For whoever looks at a failure: the files that are not as they were written."""
    whole = set(recording.contents.values())
    return json.dumps(sorted(path for path, content in files.items() if content not in whole), indent=1)
