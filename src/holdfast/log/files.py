"""How bytes reach a disk: plain system calls on a local one, ``pyarrow.fs`` on any other.

Locally everything goes through ``os`` and not through pyarrow, for two reasons. pyarrow offers neither
fsync nor a create that fails when the file exists, and both are what the protocol stands on. And importing
``pyarrow.fs`` costs a cold Spark Python worker 50 ms, so it happens only where it is needed.

Durable means, locally: the file, its entry in the folder, and the entries of all folders made for it are
synced. Elsewhere it means what closing a file means there (S3: the object is complete; HDFS: the block is
with its replicas).

What is made locally is its user's alone (0600, 0700), whatever the umask says: state is data, and who could write a
store could have code of his run. A folder that says otherwise says it the usual way, by its set-group-ID bit and its
group's right to write (``chmod 2770``): then files and folders in it are its group's too. That is asked of the folder,
and not handed around, because drivers, Spark's tasks and containers all write.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeAlias

import pyarrow as pa

Part: TypeAlias = bytes | bytearray | memoryview | pa.Buffer
TEMPORARY = ".tmp"


class Files(Protocol):
    """What a store needs of a file system. Paths are whole; missing files raise ``FileNotFoundError``."""

    def write(self, path: str, parts: Iterable[Part], sync: bool) -> int: ...
    def open(self, path: str) -> pa.Buffer: ...
    def read_range(self, path: str, offset: int, length: int) -> pa.Buffer: ...
    def size(self, path: str) -> int: ...
    def list(self, path: str) -> tuple[list[str], list[str]]: ...
    def written(self, path: str, wanted: Callable[[str], bool]) -> dict[str, float]: ...
    def delete(self, path: str) -> None: ...
    def delete_folder(self, path: str) -> None: ...


class LocalFiles:
    """Files of this machine (or of a network file system that it mounts)."""

    def __init__(self, private: bool = True) -> None:
        """Not ``private``: as the umask says, for what stands among the files of others."""
        self._private = private
        self._folders: dict[str, int | None] = {}
        """Those that are known to be there, and the mode of files in them; None: as the umask says."""

    def create(self, path: str, data: bytes) -> bool:
        """Create ``path`` with all of ``data``, or find that somebody else has: exactly one caller gets True.

        The bytes are complete and synced under a temporary name before a hard link gives them the real one,
        so no reader ever sees half a file, whoever dies where.
        """
        folder, name = os.path.split(path)
        if os.path.lexists(path):
            sync_folder(folder)
            return False
        temporary = os.path.join(folder, f".{name}.{os.urandom(8).hex()}{TEMPORARY}")
        descriptor = self._new(temporary)
        try:
            with open(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(descriptor)
            try:
                os.link(temporary, path)
                won = True
            except FileExistsError:
                # NFS repeats a request whose answer was lost, and then finds our own link: count them.
                won = os.stat(temporary).st_nlink > 1
        finally:
            os.unlink(temporary)
        # The loser syncs too: what it goes on with must not vanish with the winner's machine.
        sync_folder(folder)
        return won

    def write(self, path: str, parts: Iterable[Part], sync: bool) -> int:
        """Write a new file in place. No temporary name: a file of this kind has a name of its own and is
        read only once a ``prepare`` or manifest names it, which happens after this returns. What a crash
        leaves behind carries its epoch in its name and is swept by it; a temporary name would hide it from
        the sweep."""
        descriptor = self._new(path)
        written = 0
        try:
            with open(descriptor, "wb") as file:
                for part in parts:
                    written += file.write(part)
                file.flush()
                if sync:
                    os.fsync(descriptor)
            if sync:
                sync_folder(os.path.dirname(path))
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(path)
            raise
        return written

    def open(self, path: str) -> pa.Buffer:
        if os.stat(path).st_size == 0:
            return pa.py_buffer(b"")  # an empty file cannot be mapped
        with pa.memory_map(path) as mapped:
            return mapped.read_buffer()

    def read_range(self, path: str, offset: int, length: int) -> pa.Buffer:
        with open(path, "rb", buffering=0) as file:
            file.seek(offset)
            return pa.py_buffer(_read_all(file, length))

    def size(self, path: str) -> int:
        return os.stat(path).st_size

    def list(self, path: str) -> tuple[list[str], list[str]]:
        files: list[str] = []
        folders: list[str] = []
        with contextlib.suppress(FileNotFoundError), os.scandir(path) as entries:
            for entry in entries:
                (folders if entry.is_dir() else files).append(entry.name)
        return files, folders

    def written(self, path: str, wanted: Callable[[str], bool]) -> dict[str, float]:
        """When the files of a folder were written, in seconds since 1970."""
        found: dict[str, float] = {}
        with contextlib.suppress(FileNotFoundError), os.scandir(path) as entries:
            for entry in entries:
                if wanted(entry.name):
                    with contextlib.suppress(FileNotFoundError):  # it has got its name meanwhile
                        found[entry.name] = entry.stat().st_mtime
        return found

    def delete(self, path: str) -> None:
        os.unlink(path)

    def delete_folder(self, path: str) -> None:
        gone = [known for known in self._folders if f"{known}{os.sep}".startswith(path + os.sep)]
        for known in gone:
            del self._folders[known]
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(path)

    def _new(self, path: str) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        folder = os.path.dirname(path)
        if folder not in self._folders:
            self._make(folder)
        try:
            descriptor = os.open(path, flags, 0o600 if self._private else 0o666)
        except FileNotFoundError:  # another process has deleted the folder since
            self._make(folder)
            descriptor = os.open(path, flags, 0o600 if self._private else 0o666)
        mode = self._folders[folder]
        if mode is not None and mode != 0o600:
            os.fchmod(descriptor, mode)
        return descriptor

    def _make(self, folder: str) -> None:
        _make_folder(folder, self._private)
        self._folders[folder] = (0o660 if _is_shared(folder) else 0o600) if self._private else None


class ArrowFiles:
    """Files of any other file system that ``pyarrow.fs`` knows."""

    def __init__(self, fs: Any) -> None:
        self.fs = fs
        self._folders: set[str] = set()

    def write(self, path: str, parts: Iterable[Part], sync: bool) -> int:
        from pyarrow.fs import FileType

        if self.fs.get_file_info(path).type != FileType.NotFound:
            raise FileExistsError(f"{path} exists")
        folder = path.rpartition("/")[0]
        # An object store has no folders; making one there writes an object of its own for nothing.
        if self.fs.type_name not in ("s3", "gcs", "abfs") and folder not in self._folders:
            self.fs.create_dir(folder, recursive=True)
            self._folders.add(folder)
        written = 0
        try:
            with self.fs.open_output_stream(path) as file:
                for part in parts:
                    written += file.write(part)
        except BaseException:
            with contextlib.suppress(OSError):
                self.fs.delete_file(path)  # closing it has made half a file of it
            raise
        return written

    def open(self, path: str) -> pa.Buffer:
        with self.fs.open_input_file(path) as file:
            return file.read_buffer()

    def read_range(self, path: str, offset: int, length: int) -> pa.Buffer:
        with self.fs.open_input_file(path) as file:
            return pa.py_buffer(file.read_at(length, offset))

    def size(self, path: str) -> int:
        from pyarrow.fs import FileType

        info = self.fs.get_file_info(path)
        if info.type == FileType.NotFound:
            raise FileNotFoundError(path)
        return int(info.size or 0)

    def list(self, path: str) -> tuple[list[str], list[str]]:
        from pyarrow.fs import FileSelector, FileType

        found = self.fs.get_file_info(FileSelector(path, allow_not_found=True))
        files = [info.base_name for info in found if info.type == FileType.File]
        return files, [info.base_name for info in found if info.type == FileType.Directory]

    def written(self, path: str, wanted: Callable[[str], bool]) -> dict[str, float]:
        from pyarrow.fs import FileSelector, FileType

        found = self.fs.get_file_info(FileSelector(path, allow_not_found=True))
        return {
            info.base_name: info.mtime.timestamp()
            for info in found
            if info.type == FileType.File and info.mtime is not None and wanted(info.base_name)
        }

    def delete(self, path: str) -> None:
        self.fs.delete_file(path)

    def delete_folder(self, path: str) -> None:
        self._folders.clear()
        with contextlib.suppress(FileNotFoundError):
            self.fs.delete_dir(path)


def sync_files(paths: Iterable[str], root: str) -> None:
    """Sync local files that somebody else has written, and their entries in every folder from theirs up to ``root``."""
    folders: set[str] = set()
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        folder = os.path.dirname(path)
        while folder not in folders:
            folders.add(folder)
            folder = os.path.dirname(folder) if folder != root else root
    for folder in sorted(folders, reverse=True):  # the lowest first
        with contextlib.suppress(PermissionError):  # then it is not ours, and older than what is in it
            sync_folder(folder)


def sync_folder(path: str) -> None:
    """Sync the entries of a local folder."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a file system that syncs no folders keeps their entries itself
            raise
    finally:
        os.close(descriptor)


def _is_shared(folder: str) -> bool:
    """What is made in it is for its group too."""
    wanted = stat.S_ISGID | stat.S_IWGRP
    return os.stat(folder).st_mode & wanted == wanted


def _make_folder(path: str, private: bool = True) -> None:
    """Make a folder and those above it, from the top, each synced before the next is made.

    The folder that was there already may be one that another process has made a moment ago and not yet
    synced; because of the order, only the lowest can be, so its parent is synced too.
    """
    missing: list[str] = []
    while not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path)
    with contextlib.suppress(PermissionError):  # then it is not ours, and older than the store
        sync_folder(os.path.dirname(path))
    for folder in reversed(missing):
        above = os.path.dirname(folder)
        with contextlib.suppress(FileExistsError):
            if private and _is_shared(above):
                os.mkdir(folder, 0o700)
                os.chmod(folder, 0o2770)
            else:
                os.mkdir(folder, 0o700 if private else 0o777)
        sync_folder(above)


def _read_all(file: Any, length: int) -> bytes:
    parts: list[bytes] = []
    while length > 0 and (part := file.read(length)):
        parts.append(part)
        length -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)
