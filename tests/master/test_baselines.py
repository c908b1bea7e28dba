"""What benchmarks compare moves with: the master as others would have it."""

from __future__ import annotations

from master_kit import Play, success

from benchmarks.kit import baselines
from holdfast.master.events import MoveWanted
from holdfast.master.instructions import Demote, EpochDone, RunIntake, SendCopies


def test_stop_and_copy_holds_the_next_epoch_until_state_is_there() -> None:
    play = Play(containers=2, slices=4).join(*"ab").run().commit(0)
    baselines.stop(play.master)
    play.tell(MoveWanted(frozenset({0, 1}), "b"))
    sending = play.take(SendCopies)
    before = len(play.asked_for(RunIntake))
    assert len(play.offer(1).asked_for(RunIntake)) == before
    play.tell(success(sending))
    play.run()
    assert play.master.routing.table == ("b",) * 4
    assert [type(one) for one in play.asked if isinstance(one, Demote | RunIntake)][-2:] == [Demote, RunIntake]
    assert play.asked_for(EpochDone)[-1] == EpochDone(2)
    baselines.go_on(play.master)
