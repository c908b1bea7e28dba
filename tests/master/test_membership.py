"""Who is a member, comes and goes: the machine alone, with one user or several, whatever happens in whatever order."""

from __future__ import annotations

from typing import Any

import dice
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from holdfast.invariants import Impossible
from holdfast.master.events import Clock, ContainerJoined, ContainerLost, ScaleWanted
from holdfast.master.instructions import EndContainer, EndRun, NeedContainers
from holdfast.master.membership import FAILED_STARTS, Membership, NoneStarted, Released, Standing

BOOM = RuntimeError("no memory")
some = st.integers(0, 1000)


def stands(user: str = "main", *, whole: bool = True, calm: bool = True, **held: int) -> Standing:
    return Standing(user, held, whole, calm)


def gathered(wanted: int, *containers: str, user: str = "main") -> Membership:
    members = Membership(wanted)
    members.handle(stands(user))
    for container in containers:
        assert members.handle(ContainerJoined(container)) == []
    assert members.handle(stands(user)) == []
    assert members.gathered
    return members


def test_as_many_as_wanted_are_asked_for_at_once() -> None:
    members = Membership(3)
    assert members.handle(stands(whole=False, calm=False)) == [NeedContainers(3)]
    assert members.handle(stands()) == [], "they are coming"
    for one in "ab":
        members.handle(ContainerJoined(one))
    assert not members.gathered
    assert members.coming == 1
    members.handle(ContainerJoined("c"))
    members.handle(stands())
    assert members.gathered
    assert members.settled


def test_a_lost_one_is_replaced_when_every_user_is_whole_and_calm() -> None:
    members = gathered(2, "a", "b", user="one")
    assert members.handle(stands("two")) == []
    members.handle(ContainerLost("b"))
    assert members.handle(stands("one", whole=False)) == []
    assert members.handle(stands("one")) == [NeedContainers(1)], "the other stood well when it last said how"
    members = gathered(2, "a", "b", user="one")
    members.handle(stands("two", calm=False))
    members.handle(ContainerLost("b"))
    assert members.handle(stands("one")) == []
    assert members.handle(stands("two")) == [NeedContainers(1)]


def test_those_that_hold_least_of_all_users_together_leave_and_end_when_nobody_needs_them() -> None:
    members = gathered(3, "a", "b", "c", user="one")
    members.handle(stands("two", a=1, b=5, c=1))
    members.handle(ScaleWanted(2))
    members.handle(stands("one", a=1, b=1, c=2))
    assert members.leaving == {"a"}
    assert members.handle(Released("one", frozenset("a"))) == []
    assert members.handle(stands("two", a=1)) == []
    assert members.handle(Released("two", frozenset())) == [], "it is still moving out"
    assert members.handle(stands("two")) == []
    assert members.handle(Released("two", frozenset("ab"))) == [EndContainer("a")], "b does not leave"
    assert members.hosts.keys() == {"b", "c"}
    assert members.lost == {"a"}


def test_what_was_released_may_be_needed_again() -> None:
    members = gathered(2, "a", "b", user="one")
    members.handle(stands("two"))
    members.handle(ScaleWanted(1))
    members.handle(stands("one", b=1))
    assert members.leaving == {"a"}
    members.handle(Released("one", frozenset("a")))
    members.handle(ScaleWanted(2))
    members.handle(stands("one", a=1, b=1))
    assert not members.leaving, "it stays, and may hold something again"
    members.handle(ScaleWanted(1))
    members.handle(stands("two", b=1))
    assert members.leaving == {"a"}
    assert members.handle(Released("two", frozenset("a"))) == [], "the first user has not said so since"


def test_a_start_that_fails_three_times_in_a_row_is_not_tried_again_until_somebody_scales() -> None:
    members = gathered(2, "a", "b")
    members.handle(ContainerLost("b"))
    for _ in range(FAILED_STARTS):
        assert members.handle(stands()) == [NeedContainers(1)]
        assert members.handle(NoneStarted(1, BOOM)) == [], "one lives: the job goes on with that"
    assert members.handle(stands()) == []
    assert not members.short
    members.handle(ScaleWanted(2))
    assert members.handle(stands()) == [NeedContainers(1)]


def test_a_job_that_never_had_a_container_ends_with_the_first_start_that_fails() -> None:
    members = Membership(1)
    members.handle(stands())
    assert members.handle(NoneStarted(1, BOOM)) == [EndRun(BOOM)]


def test_an_event_that_is_no_concern_of_it_is_impossible() -> None:
    with pytest.raises(Impossible):
        Membership(1).handle(Clock(1.0))
    with pytest.raises(Impossible, match="no user"):
        Membership(1).handle(Released("nobody", frozenset()))


class Members(RuleBasedStateMachine):
    """Users that say anything in any order; containers that come, die and come late; starts that fail."""

    membership: type[Membership] = Membership

    @initialize(wanted=st.integers(1, 4), users=st.integers(1, 3))
    def begin(self, wanted: int, users: int) -> None:
        self.members = self.membership(wanted)
        self.users = [f"user{number}" for number in range(users)]
        self.asked = 0
        """Containers that were asked for and of which nothing was heard yet."""
        self.names: list[str] = []
        self.gone: set[str] = set()
        self.released: dict[str, frozenset[str]] = {}
        self.failures = 0
        self.over = False
        for user in self.users:
            self.stand(self.users.index(user), 0, True, True)

    def tell(self, event: Any) -> None:
        if self.over:
            return
        before, staying = set(self.members.hosts), set(self.members.staying)
        for told in self.members.handle(event):
            match told:
                case NeedContainers(count):
                    self.asked += count
                    here = len(self.members.staying)
                    assert here + self.members.coming <= self.members.wanted, "too many are asked for"
                    assert self.failures < FAILED_STARTS or not self.members.gathered, "it was to give up"
                case EndContainer(container):
                    assert isinstance(event, Released), "ended without a word of the users"
                    assert container in before - staying, "it was not leaving"
                    assert all(container in self.released.get(user, ()) for user in self.users), "somebody needs it"
                    self.gone.add(container)
                case EndRun():
                    assert not self.members.gathered
                    self.over = True
                case _:
                    raise AssertionError(told)

    @rule(which=some, holds=some, whole=st.booleans(), calm=st.booleans())
    def stand(self, which: int, holds: int, whole: bool, calm: bool) -> None:
        user = self.users[which % len(self.users)]
        self.released[user] = frozenset()
        held = {container: (holds >> at) % 3 for at, container in enumerate(sorted(self.members.hosts))}
        self.tell(Standing(user, held, whole, calm))

    @rule(which=some, bits=some)
    def release(self, which: int, bits: int) -> None:
        user = self.users[which % len(self.users)]
        containers = sorted(self.members.hosts)
        self.released[user] = frozenset(one for at, one in enumerate(containers) if bits >> at & 1)
        self.tell(Released(user, self.released[user]))

    @rule()
    def come(self) -> None:
        if self.asked:
            self.asked -= 1
            self.names.append(f"c{len(self.names):03d}")
            self.failures = 0
            self.tell(ContainerJoined(self.names[-1]))

    @rule()
    def die_before_joining(self) -> None:
        if self.asked:
            self.asked -= 1
            self.names.append(f"c{len(self.names):03d}")
            self.gone.add(self.names[-1])
            self.failures += 1
            self.tell(ContainerLost(self.names[-1]))

    @rule(count=st.integers(1, 4))
    def fail_to_start(self, count: int) -> None:
        if self.asked:
            count = min(count, self.asked)
            self.asked -= count
            self.failures += 1
            self.tell(NoneStarted(count, BOOM))

    @rule(which=some)
    def die(self, which: int) -> None:
        if self.names:
            name = self.names[which % len(self.names)]  # doubled, too
            self.gone.add(name)
            self.tell(ContainerLost(name))

    @rule(which=some)
    def join_doubled_or_late(self, which: int) -> None:
        if self.names:
            self.tell(ContainerJoined(self.names[which % len(self.names)]))

    @rule(wanted=st.integers(1, 4))
    def scale(self, wanted: int) -> None:
        self.failures = 0
        self.tell(ScaleWanted(wanted))

    @invariant()
    def facts_fit_together(self) -> None:
        if self.over:  # nothing that happens now is told to anybody
            return
        members = self.members
        assert members.leaving <= members.hosts.keys()
        assert not members.hosts.keys() & members.lost
        assert members.hosts.keys() == set(self.names) - self.gone, "a lost one has no way back, a living one is known"
        assert members.coming == self.asked, "who is coming was asked for"

    def teardown(self) -> None:
        """When nothing goes wrong any more there are as many as wanted, and nobody else."""
        if not hasattr(self, "members") or self.over:
            return
        self.tell(ScaleWanted(2))
        for _ in range(4):
            for which in range(len(self.users)):
                self.stand(which, 0, True, True)
                while self.asked and not self.over:
                    self.come()
            for which in range(len(self.users)):
                self.release(which, (1 << 20) - 1)
        assert self.members.settled
        assert len(self.members.hosts) == 2


TestMembers = Members.TestCase
TestMembers.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)


class EndsForOneUser(Membership):
    """One user's word is enough."""

    def _end(self) -> list[Any]:
        self._released = {user: self.leaving & frozenset().union(*self._released.values()) for user in self._released}
        return super()._end()


class KeepsOldReleases(Membership):
    """A user's word holds for ever."""

    def handle(self, event: Any) -> list[Any]:
        before = dict(self._released)
        told = super().handle(event)
        if isinstance(event, Standing):
            self._released |= {event.user: before.get(event.user, frozenset())}
        return told


class BelievesTheDead(Membership):
    """Whoever joins lives."""

    def _join(self, container: str, host: str) -> None:
        self.lost.discard(container)
        super()._join(container, host)


class AsksTwice(Membership):
    """Forgets who is coming."""

    def _gather(self) -> list[Any]:
        self.coming = 0
        return super()._gather()


@pytest.mark.parametrize(
    ("planted", "noticed"),
    [
        (EndsForOneUser, "somebody needs it"),
        (KeepsOldReleases, "somebody needs it"),
        (BelievesTheDead, "a lost one has no way back"),
        (AsksTwice, "who is coming was asked for|too many are asked for"),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_a_planted_bug_is_found(planted: type[Membership], noticed: str) -> None:
    class Planted(Members):
        membership = planted

    dice.find(Planted, noticed, histories=5000)  # a thousandth of a second each
