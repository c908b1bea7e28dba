"""A container under calls that nobody sensible would make: ``--rounds N`` makes N times as many.

With ``--rounds 10`` every handler is reached a hundred times at least, which takes more than 20,000 calls: so does
``./dev bench fuzz``.

Whatever comes, the process lives, does not grow, answers by name, and the job that others own has the state that its
epochs make: without a token nothing can touch it, and with one nothing that is sent for another job.
"""

from __future__ import annotations

import itertools
import json
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fuzzing
import pytest
from fuzzing import Draw, Fuzzer, Told
from test_container_process import PLAN, SLICES, Hosted, rows_of
from test_threshold import GROWTH, MIB, Growth

import holdfast as hf
from holdfast.container.handlers import Handlers, Jobs
from holdfast.container.messages import CopyPart, Host
from holdfast.launch.local import ContainerProcess, ContainerSettings
from holdfast.operators.stage import StagePlan
from holdfast.ring.messages import JoinRing, PiecePart, RingTerms
from holdfast.ring.service import RingHandlers
from holdfast.ring.vertex_service import VertexHandlers
from holdfast.safety.shards import Cut
from holdfast.wire.client import Unreachable
from holdfast.wire.codec import Sender
from holdfast.wire.handlers import Table
from holdfast.wire.messages import Address
from holdfast.wire.questions import Ping, RowsPart, SetThreads

REACHED = 10
"""Times that each handler is reached at least, in a round."""
EPOCHS = 6
OWNER = Sender("j", 1)
fuzzing.PARTS[:] = [RowsPart, CopyPart, PiecePart]


def in_order(*rooms: Any) -> list[type[Any]]:
    return sorted(Table(*rooms).kinds, key=lambda kind: kind.__name__)


AT_CONTAINERS = in_order(
    Handlers("c0", "token", Jobs("c0"), None, 0),  # type: ignore[arg-type]
    RingHandlers(Address("c0", ""), "token"),
    object.__new__(VertexHandlers),
)


class Counted(ContainerProcess):
    """Not of a nursery."""

    def _begin(self) -> subprocess.Popen[bytes]:
        script = str(Path(__file__).with_name("counted.py"))
        pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        return subprocess.Popen([sys.executable, script], env=self._environment, start_new_session=True, **pipes)


def judged(
    door: str,
    told: Told,
    growth: int,
    reached: Counter[str],
    kinds: list[type[Any]],
    rounds: int,
    answers: Callable[[], object],
) -> None:
    """``answers``: a call that a living process answers."""
    died = ""
    try:
        answers()
    except Unreachable as error:
        died = str(error)
    line = {
        "calls": told.calls,
        "door": door,
        "without_a_token": told.without,
        "crashes": int(bool(died)),
        "growth_mib": round(growth / MIB, 1),
        "answered": told.answered,
        "refused": dict(told.refused.most_common()),
        "unforeseen": len(told.bugs),
        "least_reached": min((reached[kind.__name__], kind.__name__) for kind in kinds),
    }
    print("\n" + json.dumps(line))
    least = REACHED * rounds
    assert not died
    assert not told.hung
    assert not told.unclear, told.unclear[:5]
    assert {kind.__name__: reached[kind.__name__] for kind in kinds if reached[kind.__name__] < least} == {}
    assert abs(told.calls - 2 * told.without) <= 1
    assert growth <= GROWTH


def fuzz(fuzzer: Fuzzer, kinds: list[type[Any]], least: int, so_far: Callable[[], Counter[str]]) -> None:
    """Until each kind's handler was reached so often, of which ``judged`` makes sure; about every third call is."""
    for number in itertools.count():
        reached = so_far()
        if all(reached[kind.__name__] >= least for kind in kinds) or number == 60:
            return
        for _ in range(max(len(kinds), 4 * least * len(kinds) // (2 * EPOCHS))):
            fuzzer.one()


def test_a_container(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    """Each type of call in turn, half of them with a valid token, until every handler was reached often enough."""
    rounds, dice = pytestconfig.getoption("--rounds"), random.Random(pytestconfig.getoption("--first-seed"))
    counts = tmp_path / "counts"
    process = Counted("c0", ContainerSettings("secret"), {"COUNTS": str(counts)})
    hosted = Hosted(tmp_path, process=process)
    here, nobody = hosted.client.address, Address("c9", "grpc://127.0.0.1:1")
    other = Host("x", (PLAN,), SLICES, str(tmp_path / "others" / "x"), "main")
    given: dict[type, Any] = {
        StagePlan: (PLAN,),
        Address: (here, nobody, Address("c1", here.location)),
        Host: (other, Host("z", (), 1, str(tmp_path / "others" / "z"), "main"), Host("j", (), 7, "/dev/null", "x")),
        Cut: (Cut(2, 1),),
        RingTerms: (RingTerms(),),
        SetThreads: tuple(SetThreads(number) for number in (1, 2, 3, 0, -1, 2**31, 2**63)),
    }
    theirs = Sender("x", max(fuzzing.NUMBERS))  # nobody is drawn who would replace him
    senders = (*[theirs] * 12, Sender("y", 1), Sender("j", 0), Sender("", -1))
    draw = Draw(dice, given, ("counts", "c0", "x"))
    made: dict[int, tuple[int, int]] = {}

    def so_far() -> Counter[str]:
        time.sleep(0.3)  # until it is told
        return Counter(json.loads(counts.read_text()))

    try:
        hosted.client.call(other, 30, sender=theirs)
        hosted.client.call(JoinRing(Cut(2, 1), hf.Star()), 30, sender=theirs)
        with (
            Fuzzer(here, "secret", AT_CONTAINERS, draw, senders, (OWNER, Sender("j", 99))) as fuzzer,
            Growth(process.pid) as growth,
        ):
            for epoch in range(1, EPOCHS + 1):
                fuzz(fuzzer, AT_CONTAINERS, REACHED * rounds * epoch // EPOCHS, so_far)
                rows = [dice.randrange(50) for _ in range(200)]
                for key in rows:
                    n, total = made.get(key, (0, 0))
                    made[key] = n + 1, total + epoch
                *_, prepare = hosted.log(epoch, rows_of(rows, [epoch] * len(rows)))
                hosted.apply(prepare)
                assert hosted.read(epoch) == made
        told = fuzzer.told
        judged("container", told, growth.bytes, so_far(), AT_CONTAINERS, rounds, lambda: hosted.call(Ping()))
        assert hosted.call(Ping()).pid == process.pid
    finally:
        hosted.close()
