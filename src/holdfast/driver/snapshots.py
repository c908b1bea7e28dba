"""Taking snapshots of a job that runs, and letting them go.

A snapshot is a complete checkpoint with a name that keeps it. Nothing waits for it but whoever asked: the checkpoint is
written behind the epochs like any other, of an epoch that was committed when it was asked for, or of a later one.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from holdfast.errors import ContainerError, PlanError, StoreError
from holdfast.invariants import some
from holdfast.log.blocks import batch_at
from holdfast.log.ledger import Ledger
from holdfast.log.past import Past
from holdfast.log.records import SPARK, GraphFile, JobFile, Manifest
from holdfast.log.snapshots import SnapshotFile, Snapshots
from holdfast.log.store import Store
from holdfast.master import events as ev
from holdfast.plan.choices import span_of

if TYPE_CHECKING:
    from holdfast.driver.live_job import LiveJob

TRIES = 5


@dataclass(frozen=True)
class Snapshot:
    """A committed epoch of a job that is kept: ``job.start(fork=snapshot)`` begins another job with it.

    ``str(snapshot)`` is ``"<store>#<number>"``, which ``fork=`` takes as well.
    """

    number: int
    store: str
    epochs: Mapping[str, int]

    def __str__(self) -> str:
        return f"{self.store}#{self.number}"


def take(run: LiveJob, timeout: float, keep: str | None) -> Snapshot:
    seconds = None if keep is None else span_of("keep", keep)
    shell, deadline = run.shell, time.monotonic() + timeout
    run.refuse_stopped()
    if run.jobs.log.written.footprints is not None:
        raise PlanError(
            "A snapshot is not there under safety=hf.Eventual(…): it is made of a checkpoint, and there are none.",
            safe="The job goes on as it was.",
            todo="Use hf.Delta for jobs that are forked.",
        )
    if not shell.machine.committed:
        raise PlanError(
            f"Job '{run.name}' has not committed an epoch yet: there is nothing to take a snapshot of.",
            safe="Nothing was written.",
            todo="Call run.process_all_available() first, or wait for the first rows.",
        )
    wanted = shell.machine.committed
    for _ in range(TRIES):
        if shell.machine.checkpointed < wanted:
            shell.tell(ev.CheckpointWanted("a snapshot"))
        while not shell.wait_for(lambda: shell.machine.checkpointed >= wanted, 1.0):
            run.refuse_failed()
            if time.monotonic() >= deadline:
                raise _abandoned(run, wanted, timeout)
        with run.jobs.log.undisturbed():  # nothing is tidied away while it is put together
            found = _put(run, run.snapshots, seconds)
        if found is not None:
            shell.history.note("snapshot", f"{found} holds epoch {found.epochs[run.ledger.section_name]}")
            return found
    raise _abandoned(run, wanted, timeout)


def every(run: LiveJob) -> list[Snapshot]:
    return [_told(run, one) for one in run.snapshots.every(run.shell.history.corrupt)]


def forget(run: LiveJob, snapshot: Snapshot | int) -> None:
    if isinstance(snapshot, Snapshot) and snapshot.store != run.ledger.store.uri:
        raise PlanError(
            f"{snapshot} is no snapshot of job '{run.name}', whose store is {run.ledger.store.uri}.",
            safe="Nothing was changed.",
            todo="Ask the job that it was taken of.",
        )
    run.refuse_stopped()
    number = snapshot.number if isinstance(snapshot, Snapshot) else snapshot
    with run.jobs.log.undisturbed():
        run.snapshots.forget(number)
    run.shell.history.note("snapshot", f"snapshot {number} was let go")


def _put(run: LiveJob, snapshots: Snapshots, seconds: float | None) -> Snapshot | None:
    """None: what it would have held went meanwhile, or somebody else has its number."""
    ledger = Ledger(run.ledger.store, run.ledger.section_name)  # of its own: reading much must not hold up an epoch
    manifests = ledger.manifests(run.shell.history.corrupt)
    if not manifests:
        return None
    now = time.time_ns() // 1_000_000
    made = _file(ledger, manifests[-1], run.file, snapshots.next(), now, seconds)
    if not snapshots.put(made):
        return None
    if not all(map(ledger.section.exists, made.holds)):  # another driver tidies up here
        snapshots.forget(made.number)
        return None
    return _told(run, made)


def _file(
    ledger: Ledger, manifest: Manifest, job: JobFile, number: int, now: int, seconds: float | None
) -> SnapshotFile:
    epoch, graph = manifest.epoch, _graph(ledger, manifest)
    commit = some(ledger.get_commit(epoch), f"epoch {epoch} has a checkpoint and no commit")
    first = some(ledger.get_prepare(epoch, 1), f"epoch {epoch} has a checkpoint and no prepare")
    prepares, level = [first], 2
    while (further := ledger.get_prepare(epoch, level)) is not None:
        prepares.append(further)
        level += 1
    batch = some(batch_at(ledger, commit.position), f"nothing says which batch epoch {epoch} has read")
    folder = graph.spark if graph else SPARK
    return SnapshotFile(
        number,
        now,
        None if seconds is None else now + round(seconds * 1000),
        job,
        graph,
        manifest,
        commit,
        tuple(prepares),
        _past(ledger, graph).to_dict(),
        _notes(ledger, folder, batch.batch_id),
        batch,
    )


def _graph(ledger: Ledger, manifest: Manifest) -> GraphFile | None:
    """In whose terms the checkpoint is."""
    graphs = ledger.graphs()
    version = graphs.version_of_checkpoint(manifest, graphs.newest)
    return ledger.graph_of(version) if version else None


def _past(ledger: Ledger, graph: GraphFile | None) -> Past:
    """No name and no number is used again, but what was changed since the checkpoint is not part of it."""
    past, version = Past.of(ledger.graphs()), graph.version if graph else 0
    return replace(past, changes=tuple(one for one in past.changes if one.version <= version))


def _notes(ledger: Ledger, folder: str, batch: int) -> dict[str, bytes]:
    """Spark's notes for a query that goes on after ``batch``. What sources have noted since, they will find themselves:
    each note stands for a range of what they read, and the next batch takes all that is above ``batch``."""
    section = ledger.section
    for _ in range(TRIES):  # Spark may compact them meanwhile
        planned = {number: _planned(ledger, folder, number) for number in range(max(0, batch - 1), batch + 1)}
        names = [f"sources/{name}" for name in _files(section, f"{folder}/sources")]
        noted = {name: section.read_if_present(f"{folder}/{name}") for name in names}
        whole = {name: content for name, content in noted.items() if content is not None}
        if planned[batch] is not None and len(whole) == len(noted):
            # Of the batch before, which is done, Spark only looks whether it is there.
            last = some(planned[batch], "looked at")
            return {f"offsets/{number}": content or last for number, content in planned.items()} | whole
    raise StoreError(
        f"Spark's own notes of batch {batch} in {section.uri}/{folder} are not there.",
        safe="Nothing was written; the job goes on.",
        todo="Take the snapshot again.",
    )


def _planned(ledger: Ledger, folder: str, batch: int) -> bytes | None:
    """What Spark planned for a batch: by its own file, or by the block that carries it when that has gone."""
    name = f"offsets/{batch}"
    found = ledger.section.read_if_present(f"{folder}/{name}")
    if found is not None:
        return found
    for one in ledger.carriers():
        if one.batch is not None and one.batch.batch_id < batch:
            break
        if one.spark is not None and one.spark.folder == folder and name in (carried := one.carried()):
            return carried[name]
    return None


def _files(section: Store, folder: str) -> list[str]:
    names = list(section.list(folder))
    for below in section.list_folders(folder):
        names += [f"{below}/{name}" for name in _files(section, f"{folder}/{below}")]
    return names


def _told(run: LiveJob, file: SnapshotFile) -> Snapshot:
    return Snapshot(file.number, run.ledger.store.uri, {run.ledger.section_name: file.epoch})


def _abandoned(run: LiveJob, epoch: int, timeout: float) -> ContainerError:
    return ContainerError(
        f"The snapshot of job '{run.name}' was given up: no checkpoint of epoch {epoch} or a later one was complete "
        f"within {timeout:g} s.",
        safe="The job goes on, and nothing is kept of this snapshot.",
        todo="Look at run.status().events for what keeps checkpoints from being written; or give it a longer timeout.",
    )
