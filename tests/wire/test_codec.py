"""What crosses comes out as it went in, and what is no message of ours is refused by name."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import HoldfastError
from holdfast.log.records import Fence, SegmentRef
from holdfast.operators.aggregate import StageSpec
from holdfast.operators.spec import AggregateSpec, Column
from holdfast.operators.stage import InputPlan, StagePlan
from holdfast.recovery.policies import Auto, Line, Star
from holdfast.recovery.structures import Branch
from holdfast.ring.messages import BranchTicket, Holding, JoinRing, Owned, Report
from holdfast.ring.overlay.messages import Hello, Publication, Route
from holdfast.safety.shards import Cut, Held, PieceName, Version
from holdfast.wire.codec import (
    VERSION,
    MessageError,
    Sender,
    Tagged,
    Within,
    from_plain,
    pack,
    to_plain,
    unpack,
    unpack_from,
)
from holdfast.wire.messages import Applied, Apply, CopiesSent, Restored, StageFigures, Tag, Undo, VerifyPacks
from holdfast.wire.questions import Collect, Get, ScanTicket


class Place(NamedTuple):
    slice: int
    part: int = 0


@dataclass(frozen=True)
class Leaf:
    name: str
    below: tuple[Leaf, ...] = ()


@dataclass(frozen=True)
class Everything(Tagged):
    """One field of every kind that a message may have."""

    whole: int
    real: float
    text: str
    truth: bool
    data: bytes
    maybe: int | None
    one_of: Literal["a", "b"]
    bounded: Annotated[int, Within(0, 10)]
    several: tuple[int, ...]
    pair: tuple[str, float]
    pairs: tuple[tuple[int, str], ...]
    some: frozenset[int]
    named: Place
    places: tuple[Place, ...]
    by_number: Mapping[int, Mapping[str, int]]
    leaf: Leaf
    policy: Star | Line | Auto
    anything: Any = None
    mixed: float | None = None
    blobs: tuple[bytes, ...] = ()
    told: Tagged | None = field(default=None)


WHOLE = Everything(
    whole=-(1 << 70),
    real=0.5,
    text="ä\n",
    truth=False,
    data=b"\x00\xff",
    maybe=None,
    one_of="b",
    bounded=9,
    several=(3, 1, 2),
    pair=("x", 1.0),
    pairs=((1, "one"),),
    some=frozenset({5, 1}),
    named=Place(3),
    places=(Place(1, 2), Place(3)),
    by_number={7: {"late": 2}},
    leaf=Leaf("a", (Leaf("b"), Leaf("c", (Leaf("d"),)))),
    policy=Line(length=2),
    anything={"what": (1, "two", None)},
    blobs=(b"", b"xyz"),
    told=Restored("1.2", 3, 4),
)

MESSAGES = [
    WHOLE,
    Apply("c0", Fence(1, 2, 3), frozenset(range(9)), 2, frozenset({3}), b"the file", id="1.7"),
    Applied("1.7", ((1, 99),), {"s": StageFigures(1, 2, {3: {"late": 4}}, None, {5: None, 6: 7})}),
    CopiesSent("1.8", (("c1", 0, 4),), {"c2": "it is gone"}, 3, 4, 0.5),
    VerifyPacks(None, Fence(1, 2, 3), 1, (), id="1.9"),
    Get("s", 3, None, b"keys"),
    Collect((("s", ""), ("t", "late")), (1, 2), 7, "changelog"),
    ScanTicket("s", 4, "read", (1,), skip={1: 65_536}),
    JoinRing(Cut(3, 2), Auto("figure 7")),
    Report({"c1": Owned((1,), (), Holding((Held(PieceName(1, 2), Version(3), 4),)))}),
    BranchTicket(Branch("c1", (PieceName(1, 2),), (Branch("c2", ()),)), {1: Version(3)}, "t", addresses={"c2": "x"}),
    Route((5, 0, 9), 7, Publication(3, ("a", 1)), receipt=True),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda one: type(one).__name__)
def test_what_goes_in_comes_out(message: Tagged) -> None:
    made, sender = unpack_from(pack(message, Sender("j", 3)), Tagged)
    assert (made, sender) == (message, Sender("j", 3))
    for one in dataclasses.fields(message):  # those too that do not count when two are compared
        assert getattr(made, one.name) == getattr(message, one.name), one.name
        assert type(getattr(made, one.name)) is type(getattr(message, one.name)), one.name


def test_bytes_are_not_in_the_header() -> None:
    rows = bytes(range(256)) * 100
    body = pack(Tag(SegmentRef("", 1, len(rows), 7, 0, 0), rows))
    assert body.endswith(rows)
    assert len(body) < len(rows) + 500
    assert unpack(body, Tag).rows == rows


def test_what_rests_in_a_file_is_text() -> None:
    spec = StageSpec((Column("k", "bigint"),), (AggregateSpec("n", "count", None, None, options=(("p", 0.5),)),))
    plan = StagePlan("s", 1, (InputPlan(1, 0),), spec)
    said = json.loads(json.dumps(to_plain(plan)))
    assert said == to_plain(plan), "what JSON would say, already"
    assert from_plain(StagePlan, said) == plan
    assert from_plain(Leaf, to_plain(WHOLE.leaf)) == WHOLE.leaf
    assert from_plain(Leaf, {"name": "a"}) == Leaf("a"), "what is missing takes its default"


GOOD = {"is": "Undo", "container": "c0", "fence": {"incarnation": 1, "epoch": 2, "attempt": 3}, "slices": [1], "id": ""}


def body(message: object, **head: Any) -> bytes:
    text = json.dumps({"version": VERSION, "sender": ["j", 1], "message": message, "blobs": [], **head}).encode()
    return len(text).to_bytes(4, "little") + text


def test_the_good_one_is_good() -> None:
    assert unpack(body(GOOD), Undo) == Undo("c0", Fence(1, 2, 3), frozenset({1}))


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (body(GOOD, version=0), "of version 0"),
        (body(GOOD | {"is": "FormatDisk"}), "'FormatDisk' is no message that is known here"),
        (body(GOOD | {"is": "Hello"}), "Hello is no Undo"),
        (body({key: one for key, one in GOOD.items() if key != "fence"}), "a Undo needs fence"),
        (body(GOOD | {"extra": 1}), "a Undo has no 'extra'"),
        (body(GOOD | {"slices": [1, "2"]}), "Undo.slices: .* is no list of int"),
        (body(GOOD | {"slices": 7}), "Undo.slices: 7 is no list of int"),
        (body(GOOD | {"container": 7}), "Undo.container: 7 is no text"),
        (body(GOOD | {"fence": {"incarnation": 1, "epoch": True, "attempt": 3}}), "fence.*epoch.*True is no whole"),
        (body(GOOD | {"fence": {"incarnation": 1, "epoch": 2}}), "a Fence needs attempt"),
        (body([]), "is no message that is known here"),
        (body(GOOD, sender=["j"]), "Sender"),
        (body(GOOD, blobs=[7]), "bytes and says"),
        (b"", "no header of ours"),
        (b"\xff\xff\xff\xff", "no header of ours"),
        (b"\x02\x00\x00\x00[]", "no header of ours"),
    ],
)
def test_anything_else_is_refused_by_name(data: bytes, why: str) -> None:
    with pytest.raises(MessageError, match=why) as caught:
        unpack(data, Undo)
    assert caught.value.safe
    assert caught.value.todo


def test_attachments_that_are_not_there() -> None:
    said = {"is": "Get", "stage": "s", "slice": 1, "epoch": None, "keys": 0}
    with pytest.raises(MessageError, match=r"Get.keys: 0 is no one of 0 attachments"):
        unpack(body(said), Get)


@given(st.binary(max_size=200))
def test_no_bytes_at_all_break_it_otherwise(data: bytes) -> None:
    with pytest.raises(HoldfastError):
        unpack(data, Tagged)


PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
NESTED = PLAIN | st.lists(PLAIN, max_size=3) | st.dictionaries(st.text(max_size=5), PLAIN, max_size=3)
JSON = NESTED | st.lists(NESTED, max_size=3)


@given(st.dictionaries(st.sampled_from(["is", "container", "fence", "slices", "id", "epoch", "x"]), JSON))
def test_no_json_breaks_it_otherwise(said: dict[str, Any]) -> None:
    with pytest.raises(MessageError):
        unpack(body({"is": "Undo", "container": "c0", **said, "y": 0}), Tagged)


def test_what_cannot_be_sent_is_said_at_once() -> None:
    with pytest.raises(MessageError, match="object"):
        pack(Route((1, 0, 1), 2, object()))
    with pytest.raises(MessageError, match="may not have a field"):
        pack(Route((1, 0, 1), 2, {"is": "Hello"}))


def test_two_classes_of_one_name_are_refused() -> None:
    with pytest.raises(TypeError, match="has the name of"):
        type("Hello", (Tagged,), {"__module__": "elsewhere"})
    assert Tagged.kinds["Hello"] is Hello
