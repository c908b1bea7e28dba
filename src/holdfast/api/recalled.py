"""What was changed while a job or a hub ran, as plain data: written into its graph, and done again at its next start.

A record is about a job (it was added, or removed) or about a stage of one (its filter, function or parameters are
others). What a program draws and what was changed stand apart, so that a program that starts again unchanged goes on
with both. A record about a stage says as what the stage was drawn then: if the program draws another one by now,
somebody has to say which of the two is meant.
"""

from __future__ import annotations

import base64
import getpass
import socket
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from holdfast.errors import PlanError, StoreError
from holdfast.plan.choices import one_of
from holdfast.plan.compile import PlannedStage
from holdfast.plan.updates import drawn_as, with_filter, with_function, with_limit

if TYPE_CHECKING:
    from holdfast.api.hub import Hub
    from holdfast.api.hub_job import HubJob
    from holdfast.api.job import Job

Record = Mapping[str, Any]
FIELDS = ("where", "function", "parameters", "k")


def added(job: HubJob) -> Record:
    texts = None if job._verbs else job._texts
    return {"kind": "add", "job": job.name, "creator": job.creator, "texts": texts, **_by()}


def removed(job: str) -> Record:
    return {"kind": "remove", "job": job, **_by()}


def updated(stage: str, was: str, said: Mapping[str, Any], *, reset: bool) -> Record:
    return {"kind": "update", "stage": stage, "was": was, **said, **({"reset": True} if reset else {}), **_by()}


def _by() -> dict[str, Any]:
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a container's user need not have a name
        user = "somebody"
    return {"by": f"{user}@{socket.gethostname()}", "at": time.time_ns() // 1_000_000}


def text_of(record: Record) -> str:
    """For people."""
    match record["kind"]:
        case "add":
            return f"job '{record['job']}' was added"
        case "remove":
            return f"job '{record['job']}' was removed"
    said = {"where": "its filter is {}", "parameters": "its parameters are {}", "k": "its k is {}"}
    told = [said.get(what, "its function is another").format(record[what]) for what in FIELDS if what in record]
    return f"stage '{record['stage']}': " + ", ".join([*told, *(["it is emptied"] if record.get("reset") else [])])


def as_function(pickled: bytes) -> str:
    return base64.b64encode(pickled).decode()


def changed(stage: PlannedStage, record: Record) -> PlannedStage:
    """The stage as the record has it."""
    if "where" in record:
        return with_filter(stage, record["where"])
    if "function" in record:
        return with_function(stage, function=base64.b64decode(record["function"]))
    if "parameters" in record:
        return with_function(stage, parameters=record["parameters"])
    return with_limit(stage, record["k"]) if "k" in record else stage


class Updates:
    """Of a job: those that are in force."""

    kind = "job"

    def __init__(self, job: Job) -> None:
        self._job = job
        self.was: dict[str, str] = {}
        """Of stages that were changed, as what the program drew them."""
        self.made: tuple[Record, ...] = ()
        """Those in force, the oldest first."""
        self.told: list[str] = []
        """What a start had to say of them."""

    def recall(self, how: str | None) -> None:
        """At a start: do again what was changed while the job ran before."""
        if how is not None:
            one_of("updates", how, "keep", "drop")
        self.was, self.made = {}, ()
        self._job._forget_changes()
        self._recall(how)

    def _recall(self, how: str | None) -> None:
        stored, self.told = self._job._noted_updates(), []
        if how == "drop":
            self.told = [f"{text_of(record)}: dropped by updates='drop'" for record in stored]
            return
        for record in stored:
            if self._again(record, how):
                self.made += (record,)
                self.told.append(f"{text_of(record)}: kept from an earlier run")

    def following(self, record: Record) -> tuple[Record, ...]:
        """Those that are in force with one more."""
        if record["kind"] == "update":
            what = next((field for field in FIELDS if field in record), None)
            if what is None:
                return self.made  # it was emptied once, and is not at every start
            kept = [one for one in self.made if not (one.get("stage") == record["stage"] and what in one)]
            return (*kept, {name: value for name, value in record.items() if name != "reset"})
        if record["kind"] == "add":  # if it was removed before, it is here again
            return (*(one for one in self.made if one["kind"] != "remove" or one["job"] != record["job"]), record)
        job = record["job"]
        about = [one for one in self.made if one.get("job") == job or one.get("stage", "").startswith(f"{job}/")]
        came = any(one["kind"] == "add" for one in about)
        kept = [one for one in self.made if one not in about]
        return tuple(kept) if came else (*kept, record)  # what only came while it ran, no program draws

    def _again(self, record: Record, how: str | None) -> bool:
        """Whether the record still says something that the program does not."""
        stage = self._stage(record["stage"])
        if stage is None:
            return False  # the program has it no more
        drawn = self.was.setdefault(record["stage"], drawn_as(stage))
        if drawn != record["was"] and how != "keep":
            raise StoreError(
                f"{text_of(record)}: so it was changed while {self.kind} '{self._job.name}' ran, and the program draws "
                "the stage otherwise now than it did then.",
                safe="Nothing was started.",
                todo=f"{self.kind}.start(updates='keep') goes on with what was changed, {self.kind}.start(updates="
                "'drop') with what the program draws.",
            )
        self._job._take_change(changed(stage, record))
        return True

    def _stage(self, name: str) -> PlannedStage | None:
        """As the program draws it, with the changes so far."""
        found = self._job._stage_called(name)
        return None if found is None else self._job._as_it_is(found.node)


class HubUpdates(Updates):
    """Of a hub: also of jobs that came and went."""

    kind = "hub"

    def __init__(self, hub: Hub) -> None:
        super().__init__(hub)
        self._hub = hub
        self._recalled = False

    @property
    def stored(self) -> set[str]:
        """The stages that were changed when the hub ran last: the program draws them otherwise than they are."""
        return {one["stage"] for one in self._hub._stored.notes()[1] if one["kind"] == "update"}

    def recall(self, how: str | None) -> None:
        if self._recalled and how == "drop" and self.made:
            raise PlanError(
                "This hub has its changes in it already.",
                safe="Nothing was started.",
                todo="Draw a new hf.Hub, and start that with updates='drop'.",
            )
        if how is not None:
            one_of("updates", how, "keep", "drop")
        if not self._recalled:
            self._recalled = True
            self._recall(how)

    def _again(self, record: Record, how: str | None) -> bool:
        hub = self._hub
        match record["kind"]:
            case "add":
                return self._add(record)
            case "remove":
                gone = hub._jobs.pop(record["job"], None)
                hub._forget_unneeded()
                return gone is not None
        return super()._again(record, how)

    def _stage(self, name: str) -> PlannedStage | None:
        return self._hub._stage(*name.split("/", 1))

    def _add(self, record: Record) -> bool:
        hub, name = self._hub, record["job"]
        if name in hub._jobs:
            return False  # the program draws it by now
        if record["texts"] is None:
            raise StoreError(
                f"Job '{name}' was added while hub '{hub.name}' ran, and only a program can draw it.",
                safe="Nothing was started; its state is in the store.",
                todo=f"Draw it before the start, as it was: hub.job('{name}'). Or drop it: hub.start(updates='drop').",
            )
        job = hub.job(name, creator=record["creator"])
        for one in record["texts"]:
            job.sql(one["text"], one["name"], dialect=one["dialect"])
        return True
