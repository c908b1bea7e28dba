"""Files through Hadoop's file systems, by py4j: put-if-absent where pyarrow has none, and Spark's own
checkpoint files.

A prepare that a crash left half written would stop its job for ever, so a name must appear with all its
bytes or not at all. On file systems with directories (HDFS and its like) that is a temporary file and a
rename that does not overwrite, as Spark writes its own offset log. On object stores a rename is a copy,
while a created object only appears when it is closed, so there it is create without overwrite, asking the
store for a conditional put where it knows one. Whether a store keeps the promise is probed at start, not
believed.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from py4j.java_gateway import JavaClass
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from holdfast.errors import StoreError
from holdfast.invariants import some

# Here a new object is visible only once it is closed, and whole.
_OBJECT_STORES = frozenset({"s3", "s3a", "s3n", "gs", "oss", "cos", "cosn", "obs", "swift"})
# What the loser of a put-if-absent is told, by file system.
_EXISTS = frozenset({"FileAlreadyExistsException", "RemoteFileChangedException"})
_CONDITIONAL_PUT = "fs.option.create.conditional.overwrite"


def hadoop_creator(spark: SparkSession, base_uri: str) -> Callable[[str, bytes], bool]:
    """A put-if-absent below ``base_uri``: ``create(name, content)`` is True for exactly one caller per
    name.

    True means the bytes are synced and closed. False means somebody's file is there, whole; it may be this
    caller's own if an object store retried a request whose answer was lost, so the loser looks at what it
    finds.
    """
    hadoop = _Hadoop(spark)
    base = base_uri.rstrip("/")
    put = hadoop.put_renamed if hadoop.renames_in_one_step(base) else hadoop.put_object

    def create(uri: str, content: bytes) -> bool:
        try:
            put(hadoop.path(uri), bytearray(content))
        except Py4JJavaError as error:
            if _java_class(error) in _EXISTS:
                return False
            raise StoreError(
                f"Could not write {uri}: {error.java_exception.getMessage()}",
                safe="The file was not created.",
                todo="Check that the store can be reached and written with the session's Hadoop settings.",
            ) from error
        return True

    return create


def list_names(spark: SparkSession, uri: str) -> list[str]:
    """The names in a folder; none if there is no folder."""
    hadoop = _Hadoop(spark)
    path = hadoop.path(uri)
    files = path.getFileSystem(hadoop.configuration)
    return [status.getPath().getName() for status in files.listStatus(path)] if files.exists(path) else []


def local_path(spark: SparkSession, uri: str) -> str | None:
    """The path on this machine's disks that Hadoop means by ``uri``; None if it is elsewhere."""
    hadoop = _Hadoop(spark)
    path = hadoop.path(uri)
    whole = path.getFileSystem(hadoop.configuration).makeQualified(path).toUri()
    return str(whole.getPath()) if whole.getScheme() == "file" else None


def qualified(spark: SparkSession, uri: str) -> str:
    """A path as Spark will take it: absolute, with scheme and authority, and through mounts where it exists."""
    hadoop = _Hadoop(spark)
    path = hadoop.path(uri)
    files = path.getFileSystem(hadoop.configuration)
    whole = files.makeQualified(path)
    with contextlib.suppress(Py4JJavaError):  # it is not there yet, or no mount is between
        whole = files.resolvePath(whole)
    text: str = whole.toString()
    return text


def read_if_present(spark: SparkSession, uri: str) -> bytes | None:
    """A small file; None if there is none."""
    hadoop = _Hadoop(spark)
    path = hadoop.path(uri)
    files = path.getFileSystem(hadoop.configuration)
    if not files.exists(path):
        return None
    stream = files.open(path)
    try:
        return bytes(stream.readAllBytes())
    finally:
        stream.close()


class _Hadoop:
    def __init__(self, spark: SparkSession) -> None:
        gateway = spark.sparkContext._gateway
        gateway = some(gateway, "Holdfast needs a classic session with its own JVM")
        self._client = gateway._gateway_client
        self.configuration: Any = spark._jsparkSession.sessionState().newHadoopConf()
        self._contexts = self._class("org.apache.hadoop.fs.FileContext")
        self._overwrite_nothing = gateway.new_array(self._class("org.apache.hadoop.fs.Options$Rename"), 0)

    def _class(self, name: str) -> Any:
        return JavaClass(name, self._client)

    def path(self, uri: str) -> Any:
        return self._class("org.apache.hadoop.fs.Path")(uri)

    def renames_in_one_step(self, uri: str) -> bool:
        if urlsplit(uri).scheme in _OBJECT_STORES:
            return False
        try:
            self._contexts.getFileContext(self.path(uri).toUri(), self.configuration)
        except Py4JJavaError as error:
            if _java_class(error) == "UnsupportedFileSystemException":
                return False
            raise
        return True

    def put_object(self, path: Any, content: bytearray) -> None:
        builder = path.getFileSystem(self.configuration).createFile(path)
        _write(builder.overwrite(False).recursive().opt(_CONDITIONAL_PUT, True).build(), content)

    def put_renamed(self, path: Any, content: bytearray) -> None:
        files = path.getFileSystem(self.configuration)
        # FileSystem's own rename may overwrite; FileContext's does not, in one step of the name node.
        context = self._contexts.getFileContext(path.toUri(), self.configuration)
        hidden = self.path(f"{path.getParent()}/.{path.getName()}.{uuid.uuid4().hex}")
        try:
            _write(files.create(hidden, False), content)
            context.rename(hidden, path, self._overwrite_nothing)
        except Py4JJavaError:
            files.delete(hidden, False)
            raise


def _write(stream: Any, content: bytearray) -> None:
    try:
        stream.write(content)
        stream.hsync()
    finally:
        stream.close()


def _java_class(error: Py4JJavaError) -> str:
    name: str = error.java_exception.getClass().getName()
    return name.rsplit(".", 1)[-1]
