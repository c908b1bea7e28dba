"""What ``job.start`` takes, checked before anything happens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral
from typing import Any, Literal

from holdfast.driver.bandwidth import bytes_a_second
from holdfast.driver.security import Plain
from holdfast.errors import PlanError
from holdfast.launch.fleet import Silence
from holdfast.master.autoscale import Autoscale, PerExecutor
from holdfast.plan.choices import one_of, trigger_of
from holdfast.plan.compile import MAX_SLICES
from holdfast.recovery.policies import Auto, Chained, FromStore, Line, Recovery, Star, Tree
from holdfast.ring.messages import JoinRing
from holdfast.safety.policies import Delta, Eventual, Safety, Shards, Terms, terms_of
from holdfast.wire.locations import is_folder

Where = Literal["auto", "driver", "executors"]
OnOverflow = Literal["fail", "null"]


_KINDS = (
    ("safety", Safety | None, "hf.Delta(…), hf.Shards(…), hf.Eventual(…), hf.Sync(…) or None"),
    ("recovery", Recovery | None, "hf.Chained(), hf.FromStore(), hf.Star(), hf.Line(), hf.Tree() or hf.Auto()"),
    ("autoscale", Autoscale | PerExecutor | None, "hf.Autoscale(…), hf.PerExecutor() or None"),
    ("silence", Silence, "hf.Silence(…)"),
)
"""What else than these would be taken for something that it is not, or be missed when something has died."""


@dataclass(frozen=True)
class Options:
    """What ``job.start`` takes; see there."""

    containers: int = 2
    threads: int = 1
    slices: int | Literal["auto"] | None = None
    trigger: Mapping[str, Any] | str | None = None
    safety: Safety | None = field(default_factory=Delta)
    recovery: Recovery | None = None
    autoscale: Autoscale | PerExecutor | None = None
    where: Where = "auto"
    copy_bandwidth: float | None = 20e6
    upload_limit: float | str | None = None
    silence: Silence = field(default_factory=Silence)
    preaggregate: bool | Literal["auto"] = "auto"
    push: bool | Literal["auto"] = "auto"
    listen: str = "auto"
    security: Plain | None = None
    on_overflow: OnOverflow | None = None
    drop: Sequence[str] = ()
    drop_sinks: Sequence[str] = ()
    sinks_at_once: int = 4
    ring: bool = False
    prefetch: int = 0
    drain: bool = False
    settle: bool = False

    def __post_init__(self) -> None:
        if self.slices is not None and self.slices != "auto" and not _is_whole(self.slices, 1, MAX_SLICES):
            raise PlanError(
                f"slices must be a whole number between 1 and {MAX_SLICES}, or 'auto', not {self.slices!r}.",
                safe="Nothing was started.",
                todo="Leave it out: then a store goes on with what it has, and a new one gets what fits most jobs.",
            )
        for name in ("containers", "threads", "sinks_at_once"):
            if not _is_whole(number := getattr(self, name), 1):
                raise PlanError(
                    f"{name} must be a whole number, at least 1, not {number!r}.",
                    safe="Nothing was started.",
                    todo=f"Leave {name}= out, or give a number of at least 1.",
                )
        if is_folder(self.listen):
            raise PlanError(
                f"listen={self.listen!r} is a folder, and listen= takes the name or address of a machine.",
                safe="Nothing was started.",
                todo="Leave it out: with a local master driver and containers talk over Unix sockets by themselves.",
            )
        if not isinstance(self.security, Plain | None):
            raise PlanError(
                f"security={self.security!r} is none.",
                safe="Nothing was started.",
                todo="Leave it out, or write security=hf.Plain() for a network that is guarded otherwise.",
            )
        one_of("where", self.where, "auto", "driver", "executors")
        one_of("preaggregate", self.preaggregate, True, False, "auto")
        one_of("push", self.push, True, False, "auto")
        one_of("ring", self.ring, True, False)
        one_of("prefetch", self.prefetch, 0, 1)
        one_of("drain", self.drain, True, False)
        one_of("settle", self.settle, True, False)
        trigger_of(self.trigger)
        checked_overflow(self.on_overflow)
        for what, names in (("drop", self.drop), ("drop_sinks", self.drop_sinks)):
            if isinstance(names, str):
                raise PlanError(f"{what} is a list of names.", todo=f"Write {what}=[{names!r}].")
        for name, kinds, use in _KINDS:
            if not isinstance(found := getattr(self, name), kinds):
                raise PlanError(f"{name} cannot be {found!r}.", safe="Nothing was started.", todo=f"Use {use}.")
        terms_of(self.safety)
        bytes_a_second(self.upload_limit, "upload_limit")
        bytes_a_second(self.copy_bandwidth, "copy_bandwidth")
        on_ring = isinstance(self.recovery, Star | Line | Tree | Auto)
        if on_ring and not isinstance(self.safety, Shards):
            raise PlanError(
                f"recovery={type(self.recovery).__name__}() needs pieces on the ring, which only safety=hf.Shards(…) "
                "makes.",
                safe="Nothing was started.",
                todo="Use safety=hf.Shards(), or recovery=hf.Chained() or hf.FromStore().",
            )
        if isinstance(self.safety, Eventual) and not isinstance(self.recovery, FromStore | None):
            raise PlanError(
                f"recovery={type(self.recovery).__name__}() needs copies, which safety=hf.Eventual(…) does not make.",
                safe="Nothing was started.",
                todo="Leave recovery= out: slices come back from the log.",
            )
        if isinstance(self.recovery, Chained) and isinstance(self.safety, Shards):
            raise PlanError(
                "recovery=Chained() needs copies of whole slices, which safety=hf.Shards(…) does not make.",
                safe="Nothing was started.",
                todo="Use recovery=hf.Auto(), Star(), Line(), Tree() or FromStore(), or safety=hf.Delta().",
            )

    @property
    def pace(self) -> dict[str, Any]:
        """The trigger as Spark takes it."""
        return trigger_of(self.trigger)

    @property
    def way_back(self) -> Recovery:
        """How lost slices come back; without a word about it, as fits the safety."""
        if isinstance(self.safety, Eventual):
            return FromStore()
        return self.recovery or (Auto() if isinstance(self.safety, Shards) else Chained())

    @property
    def ahead(self) -> int:
        """How many blocks may be unread when the next batch is taken in. Where a checkpoint holds epochs back, it shall
        hold the intake back too."""
        return 0 if self.terms().blocking else self.prefetch

    @property
    def copying(self) -> float | None:
        return bytes_a_second(self.copy_bandwidth, "copy_bandwidth")

    @property
    def upload(self) -> float | None:
        return bytes_a_second(self.upload_limit, "upload_limit")

    def terms(self) -> Terms:
        """The safety in the master's words; how a shard is cut further is for the recovery to say."""
        terms = terms_of(self.safety)
        if terms.shards is None:
            return terms
        return replace(terms, shards=replace(terms.shards, parts=getattr(self.way_back, "parts", 1)))

    def join_ring(self) -> JoinRing | None:
        """What containers must know to form a ring, and to recover by it; None: there is none."""
        shards, way = self.terms().shards, self.way_back
        if shards is None and not self.ring:
            return None
        policy = way if isinstance(way, Star | Line | Tree | Auto) else Star()  # with FromStore nobody ever asks for it
        return JoinRing(shards, policy)


def _is_whole(number: Any, least: int, most: float = float("inf")) -> bool:
    return not isinstance(number, bool) and isinstance(number, Integral) and least <= int(number) <= most


def checked_overflow(how: str | None) -> str | None:
    if how not in (None, "fail", "null"):
        raise PlanError(
            f"on_overflow must be 'fail' or 'null', not {how!r}.",
            safe="Nothing was started.",
            todo="Leave it out to have what spark.sql.ansi.enabled says.",
        )
    return how


DEFAULT = Options()
