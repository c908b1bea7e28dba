"""State in pieces on the ring: containers die, the ring brings their slices back, and nobody sees it in the results."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from kit import NEVER, Drill, EpochsGoOn, Stage, Watch, finish, until

from holdfast.log.ledger import Ledger
from holdfast.log.store import Store
from holdfast.ring.messages import AskPieces
from holdfast.wire import tokens
from holdfast.wire.client import Address, Client
from holdfast.wire.codec import Sender
from holdfast.wire.questions import AskVersions

pytestmark = pytest.mark.spark
SHARDS: dict[str, Any] = {"safety": "shards", "store_every": 1000}
"""Without a checkpoint: what does not come from the ring is replayed from the first epoch on, and shows."""


def saved(going: EpochsGoOn) -> None:
    """Every piece has all its copies, at some epoch."""
    going.settle()
    machine = going.run._shell.machine
    assert going.run._shell.wait_for(lambda: len(set(machine.copies_short())) == 1, NEVER), going.run.status()


def killed(drill: Drill) -> list[str]:
    """What happened after the first loss."""
    return drill.after("lost")


@pytest.mark.parametrize(
    "recovery",
    [
        ("tree", {"fanout_bits": 1, "depth": 2}),
        pytest.param(("star", {"fanout": 2}), marks=pytest.mark.heavy),
        pytest.param(("line", {"length": 3}), marks=pytest.mark.heavy),
        pytest.param(("auto", {}), marks=pytest.mark.heavy),
    ],
    ids=lambda one: one[0],
)
@pytest.mark.parametrize("shape", ["two"])
def test_the_ring_heals_again_and_again(stage: Stage, recovery: tuple[str, dict[str, Any]], shape: str) -> None:
    def during(going: EpochsGoOn) -> None:
        for _ in range(2):
            saved(going)
            going.kill(1)
            going.epochs(1)
        going.run.scale(containers=3)  # pieces follow when containers leave
        saved(going)
        going.kill(1)

    drill = stage.play(during, containers=4, shape=shape, recovery=recovery, **SHARDS)
    assert drill.kinds.count("lost") == 3
    after = killed(drill)
    assert {"gathered", "activated", "saved"} <= set(after)
    assert "restored" not in after, drill.report["events"]
    assert "beyond the ring" not in after


def test_two_at_once_and_then_too_many(stage: Stage) -> None:
    """With three copies of every piece two containers may go together. When more go, store and log do it."""

    def during(going: EpochsGoOn) -> None:
        saved(going)
        going.kill(2)
        going.epochs(1)
        assert "beyond the ring" not in _kinds(going), going.run.status().events
        assert "restored" not in _since_loss(going)
        saved(going)
        going.kill(4)
        going.epochs(1)

    drill = stage.play(during, containers=5, n=3, upload_limit="400 Mbit/s", **{**SHARDS, "store_every": 3})
    assert drill.kinds.count("lost") == 6
    assert {"gathered", "beyond the ring", "restored"} <= set(killed(drill))


@pytest.mark.heavy
def test_four_of_eight_at_once(stage: Stage) -> None:
    """Owner and three holders of a piece may be among them: with four copies there is always one left."""

    def during(going: EpochsGoOn) -> None:
        saved(going)
        going.kill(4)
        going.epochs(2)

    drill = stage.play(during, containers=8, shape="two", n=4, recovery=("auto", {}), **SHARDS)
    assert drill.kinds.count("lost") == 4
    after = killed(drill)
    assert {"gathered", "activated"} <= set(after)
    assert not {"restored", "beyond the ring"} & set(after), drill.report["events"]


def _kinds(going: EpochsGoOn) -> list[str]:
    return [event.kind for event in going.run._shell.history.events]


def _since_loss(going: EpochsGoOn) -> list[str]:
    kinds = _kinds(going)
    return kinds[kinds.index("lost") :]


# --------------------------------------------------------------------------------------- the driver is stopped


class Outside:
    """The containers of a driver in another process, reached without it."""

    def __init__(self, drill: Drill, process: int) -> None:
        ledger = Ledger(Store(str(drill.base / "store")), "main")
        job, owner, routing = ledger.find_job(), ledger.newest_owner(), ledger.last_routing()
        assert job is not None
        assert owner is not None
        assert routing is not None
        self.sender = Sender(job.job_id, owner.incarnation)
        self.owners = routing.owners
        token = tokens.find(job.job_id, owner.incarnation)
        self.clients: dict[str, Client] = {}
        self.pids: dict[str, int] = {}
        for child in psutil.Process(process).children(recursive=True):
            with contextlib.suppress(psutil.Error):  # it ended meanwhile
                for name, client in self._who(child, token):
                    self.clients[name], self.pids[name] = client, child.pid
        assert self.clients.keys() == set(self.owners)

    def _who(self, process: psutil.Process, token: str) -> Iterator[tuple[str, Client]]:
        """Whichever of the owners listens in this process: a socket has its name."""
        if "holdfast.launch.process" not in process.cmdline():
            return
        for connection in process.net_connections("unix"):
            name = Path(connection.laddr or "").name
            if name in self.owners:
                yield name, Client(Address(name, f"grpc+unix://{connection.laddr}"), token, self.sender)
                return

    def pieces(self, slices: list[int]) -> int:
        return sum(len(one.call(AskPieces(frozenset(slices)), 60).held) for one in self.clients.values())

    def ready(self, slices: list[int]) -> dict[int, int]:
        found: dict[int, int] = {}
        for client in self.clients.values():
            found |= client.call(AskVersions(tuple(slices)), 60).versions
        return found

    def kill(self, name: str) -> None:
        os.kill(self.pids[name], signal.SIGKILL)
        self.clients.pop(name).close()

    def close(self) -> None:
        for client in self.clients.values():
            client.close()


@pytest.mark.drivers
@pytest.mark.long
def test_the_ring_recovers_while_the_driver_is_stopped(tmp_path: Path) -> None:
    drill = Drill(tmp_path, files=18, rows=300, keys=300, config={"containers": 4, "shape": "one", **SHARDS})
    watch = Watch(drill)
    process = drill.start()
    outside = None
    try:
        watch.go_on(2)
        outside = Outside(drill, process.pid)
        victim = outside.owners[0]
        lost = [number for number, owner in enumerate(outside.owners) if owner == victim]
        until(lambda: outside.pieces(lost) >= 2 * 3 * 2 * len(lost), NEVER, "two copies of every piece are on the ring")
        os.kill(process.pid, signal.SIGSTOP)
        outside.kill(victim)
        until(lambda: set(outside.ready(lost)) == set(lost), NEVER, "every lost slice is ready")
        committed = watch()
        until(lambda: set(outside.ready(lost).values()) == {committed}, NEVER, "at the last committed epoch")
        assert psutil.Process(process.pid).status() == psutil.STATUS_STOPPED
        os.kill(process.pid, signal.SIGCONT)
        watch.go_on(2)
    finally:
        if outside is not None:
            outside.close()
        os.kill(process.pid, signal.SIGCONT)
        ended = finish(process)
    assert ended.code == 0, ended.error
    drill.check()
    after = killed(drill)
    assert "activated" in after
    assert "restored" not in after, drill.report["events"]
