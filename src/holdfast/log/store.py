"""The store: one folder, on any location ``pyarrow.fs`` knows, that holds everything a job must not lose.

Files are written once and never changed. There are two ways to write one. ``put_if_absent`` decides between
rivals: of all who try one name exactly one wins, and its file is complete and durable before anybody can
see it. ``write`` is for bulk under a name that nobody else uses. ``pyarrow.fs`` has no such create, so
local folders use hard links, and other locations a ``creator`` that the driver brings along (Hadoop's
create-without-overwrite). Spark's workers and the containers get a pickled store, which has none: they only
ever ``write`` and read.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from holdfast.errors import FullDiskError, StoreError
from holdfast.log.files import ArrowFiles, Files, LocalFiles, Part

Creator = Callable[[str, bytes], bool]
Names = list[str]  # inside the class, list is the method
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class Store:
    """A folder on any ``pyarrow.fs`` location. Picklable, without its ``creator``.

    ``uri`` is an absolute plain path for a local folder, and the location as given for any other. Names are
    relative to it and may contain ``/``; folders come into being with their first file.
    """

    def __init__(self, uri: str | os.PathLike[str], creator: Creator | None = None) -> None:
        files, path, uri = _locate(os.fspath(uri))
        self._set(files, path, uri, creator)

    def _set(self, files: Files, path: str, uri: str, creator: Creator | None) -> None:
        self._files = files
        self._path = path
        self._creator = creator
        self.uri = uri
        self.is_local = isinstance(files, LocalFiles)

    @classmethod
    def on(cls, fs: Any, path: str, creator: Creator | None = None) -> Store:
        """A store on a ``pyarrow.fs`` file system that the caller has set up (credentials, endpoints)."""
        store = cls.__new__(cls)
        store._set(ArrowFiles(fs), path.rstrip("/"), f"{fs.type_name}:{path.rstrip('/')}", creator)
        return store

    def sub(self, folder: str) -> Store:
        """The store of a folder in this one."""
        store = type(self).__new__(type(self))
        store._set(self._files, self._at(folder), _join(self.uri, folder), self._creator)
        return store

    def __reduce__(self) -> tuple[object, ...]:
        if isinstance(self._files, ArrowFiles):
            return _rebuild, (self._files.fs, self._path, self.uri)
        return Store, (self.uri,)

    def __repr__(self) -> str:
        return f"Store({self.uri!r})"

    # Writing

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """True: this call has created the file, and it is durable. False: another's is there, whole."""
        if self._creator is not None:
            # An object store repeats a request whose answer was lost, and then finds our own file: look whose it is.
            return self._creator(_join(self.uri, name), data) or self.read_if_present(name) == data
        if not isinstance(self._files, LocalFiles):
            raise StoreError(
                f"{self.uri} has no way to create {name} exactly once: pyarrow has none for such a location",
                safe="Nothing was written.",
                todo="Only the driver decides between rivals; give its store a creator.",
            )
        with self._explained(name, "create"):
            return self._files.create(self._at(name), data)

    def write(self, name: str, parts: Iterable[Part], *, sync: bool = True) -> int:
        """Write a new file under a name that nobody else uses, to its end; the number of bytes. A failure
        leaves nothing behind."""
        with self._explained(name, "write"):
            return self._files.write(self._at(name), parts, sync)

    def delete(self, names: Iterable[str]) -> None:
        """Delete files; those that are gone already are fine."""
        for name in names:
            with self._explained(name, "delete"), contextlib.suppress(FileNotFoundError):
                self._files.delete(self._at(name))

    def delete_folder(self, folder: str) -> None:
        """Delete a folder with all that is in it; one that is gone already is fine."""
        with self._explained(folder, "delete"):
            self._files.delete_folder(self._at(folder))

    # Reading

    def read(self, name: str) -> bytes:
        """The whole file, copied."""
        with self._explained(name, "read"):
            return bytes(self._files.open(self._at(name)))

    def read_if_present(self, name: str) -> bytes | None:
        """The whole file, or None if there is none: one request, where ``exists`` then ``read`` is two."""
        with self._explained(name, "read"):
            try:
                return bytes(self._files.open(self._at(name)))
            except FileNotFoundError:
                return None

    def open(self, name: str) -> pa.Buffer:
        """The whole file; mapped into memory when it is local, so that only what is touched is read."""
        with self._explained(name, "read"):
            return self._files.open(self._at(name))

    def read_range(self, name: str, offset: int, length: int) -> pa.Buffer:
        """``length`` bytes from ``offset`` on; fewer where the file ends before."""
        with self._explained(name, "read"):
            return self._files.read_range(self._at(name), offset, length)

    def size(self, name: str) -> int:
        with self._explained(name, "read"):
            return self._files.size(self._at(name))

    def exists(self, name: str) -> bool:
        with self._explained(name, "look for"):
            try:
                self._files.size(self._at(name))
            except FileNotFoundError:
                return False
            return True

    def list(self, folder: str = "") -> Names:
        """The names of the files in a folder, sorted, without hidden ones (in the making, or Hadoop's checksums)."""
        with self._explained(folder, "list"):
            files, _ = self._files.list(self._at(folder))
        return sorted(name for name in files if not name.startswith("."))

    def ages(self, folder: str, wanted: Callable[[str], bool]) -> dict[str, float]:
        """How many seconds ago those files of a folder were written that are wanted by their names, hidden ones among
        them; by their names in the store."""
        now = time.time()
        with self._explained(folder, "list"):
            found = self._files.written(self._at(folder), wanted)
        return {f"{folder}/{name}" if folder else name: now - at for name, at in found.items()}

    def list_folders(self, folder: str = "") -> Names:
        with self._explained(folder, "list"):
            _, folders = self._files.list(self._at(folder))
        return sorted(folders)

    def probe(self) -> None:
        """Refuse a store that does not keep what the protocol stands on (see ``probing``)."""
        from holdfast.log.probe import probe

        probe(self)

    # Within

    def _at(self, name: str) -> str:
        if name.startswith("/") or ".." in name.split("/"):
            raise ValueError(f"{name!r} is not a name inside a store")
        return f"{self._path}/{name}" if name else self._path

    @contextlib.contextmanager
    def _explained(self, name: str, doing: str) -> Iterator[None]:
        """System errors become errors that say which file of which store, and what to do."""
        try:
            yield
        except OSError as error:
            where = _join(self.uri, name) if name else self.uri
            if error.errno in _FULL:
                raise FullDiskError(
                    f"No room left to {doing} {where}",
                    safe="Every epoch prepared before is on disk; nothing of this file was kept.",
                    todo="Free some room, then start the job again: it continues where it was.",
                ) from error
            if isinstance(error, NotADirectoryError):
                raise StoreError(
                    f"{self.uri} cannot be a store: it is a file, or in one.",
                    safe="The file was not touched.",
                    todo="Give the job a folder of its own, or a place where one can be made.",
                ) from error
            if error.errno == errno.EROFS or isinstance(error, PermissionError):
                raise StoreError(
                    f"Not permitted to {doing} {where}"
                    + (": the file system is read-only" if error.errno == errno.EROFS else ""),
                    safe="What is there is as it was.",
                    todo="Give this user the right to read and write the store's folder, or the job another store.",
                ) from error
            if isinstance(error, FileNotFoundError) and doing in ("create", "write"):
                raise StoreError(
                    f"The folder of {where} cannot be made.",
                    safe="Nothing was written.",
                    todo="Give the job a store where this user can make folders.",
                ) from error
            if isinstance(error, FileNotFoundError):
                raise StoreError(f"There is no file {where}") from error
            if isinstance(error, FileExistsError):
                raise StoreError(f"{where} exists already; files of a store are written once") from error
            raise StoreError(f"Could not {doing} {where}: {error}") from error
        except pa.ArrowException as error:
            raise StoreError(f"Could not {doing} {_join(self.uri, name)}: {error}") from error


def _locate(uri: str) -> tuple[Files, str, str]:
    if not uri:
        raise StoreError(
            "A store needs a place: it was given as an empty string.",
            safe="Nothing was written.",
            todo="Give a folder of this job alone, as a path or like s3://bucket/folder.",
        )
    parts = urlsplit(uri)
    if len(parts.scheme) < 2 or parts.scheme == "file":  # one letter would be a drive, not a scheme
        path = os.path.abspath(os.path.expanduser(unquote(parts.path) if parts.scheme == "file" else uri))
        return LocalFiles(), path, path
    from pyarrow.fs import FileSystem

    try:
        fs, path = FileSystem.from_uri(uri)
    except (OSError, pa.ArrowException) as error:
        raise StoreError(
            f"Cannot open the store {uri}: {error}",
            todo="Use a local path, or a location that pyarrow.fs knows: s3://…, hdfs://…, gs://…, abfs://….",
        ) from error
    return ArrowFiles(fs), path.rstrip("/"), uri.rstrip("/")


def _join(uri: str, name: str) -> str:
    """``name`` below ``uri``, in front of options such as ``?endpoint_override=…``."""
    if "://" not in uri:
        return f"{uri}/{name}"
    base, question, options = uri.partition("?")
    return f"{base.rstrip('/')}/{name}{question}{options}"


def _rebuild(fs: Any, path: str, uri: str) -> Store:
    store = Store.on(fs, path)
    store.uri = uri
    return store
