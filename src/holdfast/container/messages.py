"""Calls and streams between processes that speak of operators and of copies: those that hold slices know both."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.operators.stage import StagePlan
from holdfast.safety.policies import Checks
from holdfast.state.copies import Header
from holdfast.wire.codec import Tagged
from holdfast.wire.messages import Call, Done, Push


@dataclass(frozen=True)
class Host(Call[Done]):
    """Hold slices of this job, and run these stages on them."""

    job: str
    stages: tuple[StagePlan, ...]
    slices: int
    store: str
    section: str
    upload: float | None = None
    """Bytes a second that go to peers, all together."""
    copy_bandwidth: float | None = None
    """Of those as copies and pieces, behind the epochs."""
    graph: int = 0
    """The version of the job's graph that has these stages."""
    checks: Checks | None = None
    """Units of the state are in the log, and how often."""


@dataclass(frozen=True)
class CopiesPush(Push):
    """An owner's copies of slices, of one table; ``copy`` names the sending."""

    incarnation: int
    copy: str
    table: str
    graph: int = 0
    """That the owner has: whoever takes the copy must know its tables."""


@dataclass(frozen=True)
class CopyPart(Tagged):
    """Whose rows these are, one slice after the other; of each how many, what they are, and how many tables its copy
    has: those that are as they were do not come."""

    slices: tuple[int, ...]
    rows: tuple[int, ...]
    tables: tuple[int, ...]
    headers: tuple[Header, ...]
