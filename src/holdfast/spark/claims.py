"""Whose a folder of files is: one sink's of one job, for ever.

Spark's file sink skips batches whose numbers its folder has seen. Two sinks on one folder therefore lose rows, and
neither notices. Within a job that can be seen from the plan, by where the paths lead and not by how they are spelt; of
other jobs a file in the folder tells. Its name begins with an underscore, so Spark and Arrow do not take it for rows,
and it is written by put-if-absent, so that of two jobs that start at the same time one is refused.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from pyspark.sql import SparkSession

from holdfast.errors import PlanError, StoreError
from holdfast.log.files import LocalFiles
from holdfast.spark.hadoop import hadoop_creator, qualified, read_if_present

FILE = "_holdfast"


@dataclass(frozen=True)
class Claim:
    """What stands in the file. ``name`` and ``store`` are for people: a store may be moved, a job's id stays."""

    job: str
    sink: str
    name: str
    store: str

    def same(self, other: Claim) -> bool:
        return (self.job, self.sink) == (other.job, other.sink)


def resolved(spark: SparkSession, path: str) -> str:
    """Where a path leads, spelt in one way: absolute, with its scheme, without links and dots."""
    uri = qualified(spark, path)
    local = _local(uri)
    return uri if local is None else f"file://{os.path.realpath(local)}"


def refuse_shared(spark: SparkSession, paths: Sequence[tuple[str, str]]) -> None:
    """No folder of the named sinks may be another's, nor lie inside one: whoever lists it would find both's files."""
    folders = [(name, path, resolved(spark, path)) for name, path in paths]
    for (one, its_path, mine), (other, _, theirs) in itertools.combinations(folders, 2):
        inner, outer = (mine, theirs) if len(mine) > len(theirs) else (theirs, mine)
        if mine == theirs or inner.startswith(f"{outer.rstrip('/')}/"):
            raise PlanError(
                f"The sinks '{one}' and '{other}' write to the same folder: {its_path} is {mine}."
                if mine == theirs
                else f"The folders of the sinks '{one}' and '{other}' lie inside each other: {inner} is in {outer}.",
                safe="Nothing was started.",
                todo="Give each its own folder, side by side; or union the streams before one write.",
            )


def look(spark: SparkSession, path: str, ours: Claim) -> bool:
    """Whether the folder is claimed, by us; refused if it is by somebody else."""
    found = _read(spark, path)
    if found is not None and not found.same(ours):
        raise _taken(path, found, ours)
    return found is not None


def take(spark: SparkSession, path: str, ours: Claim) -> None:
    """From here on the folder is ours."""
    uri = qualified(spark, path)
    local = _local(uri)
    file = f"{uri.rstrip('/') if local is None else local}/{FILE}"
    said = json.dumps(asdict(ours), indent=2).encode() + b"\n"
    won = LocalFiles(private=False).create(file, said) if local is not None else hadoop_creator(spark, uri)(file, said)
    if not won and not look(spark, path, ours):
        raise StoreError(f"{file} was there and is gone: somebody is deleting files of {path}")


def _read(spark: SparkSession, path: str) -> Claim | None:
    file = f"{path.rstrip('/')}/{FILE}"
    raw = read_if_present(spark, file)
    if raw is None:
        return None
    try:
        said = json.loads(raw)
        return Claim(**{name: str(said[name]) for name in Claim.__dataclass_fields__})
    except (ValueError, KeyError, TypeError):
        raise StoreError(
            f"{file} should say whose folder this is, and does not: it was changed or cut short.",
            safe="Nothing was written.",
            todo="If the folder is this job's, delete that file and start again; else give the sink another folder.",
        ) from None


def _taken(path: str, found: Claim, ours: Claim) -> StoreError:
    if found.job == ours.job:
        return StoreError(
            f"Sink '{ours.sink}' writes to {path}, which belongs to the sink '{found.sink}' of this job.",
            safe="Nothing was written.",
            todo=f"Call the sink by the name that it had (write(…, name={found.sink!r})), or give it a folder of its "
            "own.",
        )
    return StoreError(
        f"Sink '{ours.sink}' writes to {path}, which belongs to the sink '{found.sink}' of another job: '{found.name}' "
        f"({found.job}) with its store in {found.store}. This job is '{ours.name}' ({ours.job}).",
        safe="Nothing was written.",
        todo="Give the sink a folder of its own. If the job was given a new store, that is a new job: give it a new "
        f"folder too, or start it with the store it had. If the folder was copied from another job's, delete {FILE} "
        "and _spark_metadata in the copy, and it is nobody's.",
    )


def _local(uri: str) -> str | None:
    """The path of a folder of this machine; None if it is elsewhere."""
    return uri.removeprefix("file:") if uri.startswith("file:/") else None
