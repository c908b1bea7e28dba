"""How others change a running job, on the same machinery: no epoch runs while state is on its way.

Stop-and-copy and repartition are what ChronoStream compares itself with. They are not options of a run: what they do
differently from a move is here, and reaches into a run as no user would. Everything else of a move (who gets what, the
copy, the rebuilding, the new owner) is the shipped code, so that the comparison is of the two ways alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.driver.options import DEFAULT
from holdfast.master.flight import Flight
from holdfast.master.machine import Master
from holdfast.master.migration import Migration
from holdfast.master.moves import Phase
from holdfast.master.progress import Moment
from holdfast.wire.questions import SetLimits, SetThreads

if TYPE_CHECKING:
    from holdfast import Run

SECONDS = 600.0


class AllAtOnce(Migration):
    """The job stands still: all slices are copied at once, and nothing is left to compare a destination with."""

    at_once = 1 << 30

    def prove(self, moment: Moment) -> None:
        for move in self.moves.of.values():
            move.proven = move.proven or move.phase is Phase.DUAL


class StopAndCopy(Master):
    """No epoch begins while slices are on their way."""

    def _advance_epoch(self, flight: Flight) -> None:
        if flight.prepared or not self._elastic.moves:
            super()._advance_epoch(flight)


def stop(master: Master) -> None:
    """From now on moves stop the job."""
    master._elastic.migration.__class__ = AllAtOnce
    master.__class__ = StopAndCopy


def go_on(master: Master) -> None:
    master.__class__ = Master
    master._elastic.migration.__class__ = Migration


def scale_stopped(run: Run, containers: int) -> None:
    """Stop, copy as fast as it goes, go on. Returns when the slices are where they shall be."""
    shell, fleet = run._shell, run._fleet
    fleet.call_all(SetLimits({"copies": None}), timeout=10.0)
    stop(shell.machine)
    try:
        run.scale(containers=containers)
        shell.drained(SECONDS)
        shell.wait_for(lambda: bool(shell.machine._elastic.moves) or shell.machine.settled, SECONDS)
        shell.wait_for(lambda: not shell.machine._elastic.moves, SECONDS)
    finally:
        go_on(shell.machine)
        fleet.call_all(SetLimits({"copies": DEFAULT.copy_bandwidth}), timeout=10.0)


def repartition(run: Run, threads: int) -> None:
    """Between two epochs: other threads, and every key into a new table, as if each thread had a table of its own."""
    with run._shell.between_epochs():
        run._fleet.call_all(SetThreads(threads, repartition=True), timeout=None)
