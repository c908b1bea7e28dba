"""The master's own door: where scans ask for a slice's present owner and data sources find a job.

It answers small questions and carries no rows. Same token, same check of who is meant as at a container's door.
"""

from __future__ import annotations

import uuid

import pyarrow as pa

from holdfast.driver.brain import Brain
from holdfast.driver.routes import Routes
from holdfast.errors import PlanError, StoreError
from holdfast.launch.fleet import Fleet
from holdfast.log.records import JobFile
from holdfast.spark.stream import JobPlan
from holdfast.wire import socket_folder
from holdfast.wire.handlers import handler
from holdfast.wire.locations import MASTER, is_folder
from holdfast.wire.questions import Describe, Described, Locate, Located, Pin, Renew, Renewed
from holdfast.wire.server import Server

LOCATE_SECONDS = 30.0


class Desk(Server):
    """Whoever has answers adds itself: a run, and what starts containers on executors."""

    def __init__(self, host: str, token: str) -> None:
        # It answers from here on. ``serve`` would only wait, and take the signals from the program meanwhile: a Ctrl-C
        # would end this door, and nobody else would hear of it.
        try:
            super().__init__(MASTER, token, host, "The master")
        except (pa.ArrowException, OSError) as error:
            if is_folder(host):
                raise
            raise PlanError(
                f"The driver cannot listen on {host!r}: {error}.",
                safe="Nothing was started.",
                todo="Give listen= a name or an address of this machine, or leave it out.",
            ) from error
        self._host = host

    def close(self) -> None:
        """The last door of a run, and with it the folder that all of them were in."""
        self.shutdown()
        if is_folder(self._host):
            socket_folder.remove(self._host)


class Questions:
    """What scans and data sources ask."""

    def __init__(
        self, file: JobFile, incarnation: int, plan: JobPlan, brain: Brain, routes: Routes, fleet: Fleet
    ) -> None:
        self._file, self._incarnation, self.plan = file, incarnation, plan
        self._brain, self._routes, self._fleet = brain, routes, fleet

    @handler
    def locate(self, call: Locate) -> Located:
        return Located(self._routes.located(call, LOCATE_SECONDS))

    @handler
    def renew(self, call: Renew) -> Renewed:
        """Somebody still reads."""
        answers = self._fleet.call_all(call, timeout=10.0)
        return Renewed(all(answer.renewed for answer in answers.values()))

    @handler
    def describe(self, call: Describe) -> Described:
        names = [stage.name for stage in self.plan.stages]
        if call.stage not in names:
            raise StoreError(
                f"Job '{self._file.name}' has no stage '{call.stage}'.",
                todo=f"Its stages are: {', '.join(names)}.",
            )
        epoch, reader = self._brain.machine.committed, ""
        if call.lease:
            reader = uuid.uuid4().hex
            self._fleet.call_all(Pin(reader, epoch))
        schema = self.plan.stage(call.stage).state.json()
        return Described(self._file.job_id, self._incarnation, schema, epoch, self._routes.groups(), reader)
