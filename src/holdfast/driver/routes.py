"""Where slices are: for tasks that push and scan, for readers, and for the driver itself."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa

from holdfast.driver.brain import Brain
from holdfast.errors import ContainerError, EpochGone
from holdfast.launch.fleet import Fleet
from holdfast.spark.scan import group_by_owner
from holdfast.wire.client import Unreachable
from holdfast.wire.messages import PATIENCE_SECONDS, Address, Groups, Mode
from holdfast.wire.questions import Collect, Locate

OWNER_SECONDS = 60.0 + PATIENCE_SECONDS  # what the ring does not bring back comes from the store after that
AT_ONCE = 16


class Routes:
    def __init__(self, brain: Brain, fleet: Fleet) -> None:
        self._brain, self._fleet = brain, fleet
        self._pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="holdfast-collect")

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def groups(self) -> Groups:
        """Which living container has which slices: all of them. Waits if the last container was lost just now."""
        brain = self._brain
        brain.wait_for(lambda: None not in brain.machine.routing.table or brain.given_up(), OWNER_SECONDS)
        with brain.changed:
            owners, given_up = brain.machine.routing.table, brain.given_up()
        if brain.error is not None:
            raise brain.error
        if given_up:
            raise _given_up()
        if None in owners:
            raise ContainerError(
                f"No container took over within {OWNER_SECONDS:.0f} s.",
                safe="Everything that was committed; an epoch that is prepared will be finished by the next start.",
                todo="Look at run.status().events for why no container could start.",
            )
        return self._by_owner(owners)

    def push_groups(self) -> Groups:
        """Where rows may be pushed: not to a container that has been silent."""
        suspects = self._fleet.suspects
        return tuple(group for group in self.groups() if group[0].container not in suspects)

    def located(self, call: Locate, seconds: float) -> Groups:
        """Where these slices are, once their owners have what the scan wants of them."""
        brain, machine = self._brain, self._brain.machine

        def in_vain() -> bool:
            return call.mode != "read" and not machine.in_flight(call.epoch)

        def ready() -> bool:
            if call.mode == "read":
                return all(machine.owner(number) for number in call.slices)
            return in_vain() or all(machine.ready(number, call.epoch, call.level) for number in call.slices)

        brain.wait_for(ready, seconds)
        if brain.error is not None:
            raise brain.error
        wanted = set(call.slices)
        with brain.changed:
            if in_vain():
                raise _given_up()
            owners = machine.routing.table
        return self._by_owner([owner if number in wanted else None for number, owner in enumerate(owners)])

    def collect(
        self, outputs: Sequence[tuple[str, str]], epoch: int, mode: Mode
    ) -> dict[tuple[str, str], list[pa.Table]] | None:
        """Small outputs, (stage, port), straight from all containers at once; None if one of them could not answer."""

        def one(group: tuple[Address, tuple[int, ...]]) -> Sequence[bytes]:
            address, slices = group
            return self._fleet.call(address.container, Collect(tuple(outputs), slices, epoch, mode)).rows

        try:
            answers = list(self._pool.map(one, self.groups()))
        except (Unreachable, EpochGone):
            return None
        found: dict[tuple[str, str], list[pa.Table]] = {}
        for output, *parts in zip(outputs, *answers, strict=True):
            found[output] = [pa.ipc.open_stream(rows).read_all() for rows in parts if rows]
        return found

    def _by_owner(self, owners: Sequence[str | None]) -> Groups:
        grouped = group_by_owner(range(len(owners)), lambda number: owners[number] or "")
        return tuple((self._fleet.address(name), slices) for name, slices in grouped.items() if name)


def _given_up() -> EpochGone:
    return EpochGone(
        "The epoch was given up: nobody will have its outputs.",
        safe="Every committed epoch; one that is prepared is finished by the next start of the job.",
        todo="Look at why the batch failed.",
    )
