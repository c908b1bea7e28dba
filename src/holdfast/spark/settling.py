"""The folder of a file sink on a local disk, made durable: Spark's file sink syncs neither its files nor its log.

Before an epoch is committed, the files that its entry in the sink's log names, that entry and all folders on the way
are synced (``settle``). So only the entry of an epoch that is not committed can be torn, or name files that are; and
Spark's sink skips a number that it has an entry for. At a start such an entry is taken out (``forget_torn``), and the
epoch is written again, with the same rows. One that is whole stays: somebody may have read it.
"""

from __future__ import annotations

import contextlib
import json
import os
from urllib.parse import unquote, urlsplit

from holdfast.log.files import sync_files, sync_folder
from holdfast.log.repair import checksum_name, checksums

LOG_FOLDER = "_spark_metadata"
_PART = 4 << 20  # a multiple of what one checksum is of


class Settled:
    def __init__(self, folder: str) -> None:
        self._folder = folder.rstrip("/")
        self._begun = False

    def settle(self, counter: int) -> None:
        entry = self._entry(counter)
        if entry is None:
            raise FileNotFoundError(f"{self._folder}/{LOG_FOLDER}/{counter} is not there, though it was just written")
        files = [entry, *self._files(entry, counter)]
        sums = [path for path in map(checksum_name, files) if os.path.exists(path)]
        # At first the folder itself may be new, and those above it.
        sync_files([*files, *sums], self._folder if self._begun else "/")
        self._begun = True

    def forget_torn(self, counter: int) -> bool:
        """Take the entry out if it, or a file that it names, is not whole; whether it was so."""
        entry = self._entry(counter)
        if entry is None:
            return False
        if _is_whole(entry) and all(_is_whole(path) for path in self._files(entry, counter)):
            self.settle(counter)  # it will be skipped, and must last
            return False
        for path in (checksum_name(entry), entry):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
        sync_folder(f"{self._folder}/{LOG_FOLDER}")
        return True

    def _entry(self, counter: int) -> str | None:
        for name in (f"{counter}", f"{counter}.compact"):
            path = f"{self._folder}/{LOG_FOLDER}/{name}"
            if os.path.exists(path):
                return path
        return None

    def _files(self, entry: str, counter: int) -> list[str]:
        """The files that the epoch has added. A compact entry names those of all epochs before, too: of these the last
        line is known, and Spark keeps their order."""
        lines = _lines(entry)
        if entry.endswith(".compact"):
            for before in range(counter - 1, -1, -1):
                former = self._entry(before)
                known = _lines(former) if former is not None else []
                if known and known[-1] in lines:
                    lines = lines[len(lines) - lines[::-1].index(known[-1]) :]
                if known or former is None or former.endswith(".compact"):
                    break
        return [unquote(urlsplit(json.loads(line)["path"]).path) for line in lines]


def _lines(entry: str) -> list[bytes]:
    with open(entry, "rb") as file:
        return file.read().splitlines()[1:]  # behind the format


def _is_whole(path: str) -> bool:
    """Whether a file is what Hadoop's checksums beside it say, some of it at a time."""
    try:
        with open(path, "rb") as file, open(checksum_name(path), "rb") as sums:
            head = checksums(b"")
            if sums.read(len(head)) != head:
                return False
            while part := file.read(_PART):
                told = checksums(part)[len(head) :]
                if sums.read(len(told)) != told:
                    return False
            return not sums.read(1)
    except FileNotFoundError:
        return False
