"""Every call has one handler, found by its type; and no header is a dictionary any more."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from holdfast.api.asked import RunQuestions
from holdfast.container.handlers import Handlers, Jobs
from holdfast.driver.containers import ContainerHandlers
from holdfast.driver.endpoint import Questions
from holdfast.driver.epochs import EpochJobs
from holdfast.driver.intake import IntakeHandlers
from holdfast.driver.store import StoreHandlers
from holdfast.launch.executors import ExecutorLauncher
from holdfast.master import instructions as do
from holdfast.master import offers, pump
from holdfast.ring.service import RingHandlers
from holdfast.ring.vertex_service import VertexHandlers
from holdfast.wire.codec import Tagged
from holdfast.wire.handlers import Table, handler
from holdfast.wire.messages import (
    Address,
    Call,
    Done,
    Instruction,
    Push,
    Ticket,
    ToContainer,
    Undo,
    Undone,
    VerifyPacks,
)
from holdfast.wire.questions import Ping, Pong

SOURCE = Path(__file__).parents[2] / "src" / "holdfast"


def kinds_of(base: type) -> set[type]:
    """All of ours; a test may have its own."""
    return {
        kind for kind in Tagged.kinds.values() if issubclass(kind, base) and kind.__module__.startswith("holdfast.")
    } - {base}


def test_every_call_and_stream_has_one_handler() -> None:
    container = Table(
        Handlers("c0", "token", Jobs("c0"), None, 0),  # type: ignore[arg-type]
        RingHandlers(Address("c0", ""), "token"),
        object.__new__(VertexHandlers),
    )
    desk = Table(*map(object.__new__, (Questions, RunQuestions, ExecutorLauncher)))
    assert kinds_of(Ticket) | kinds_of(Push) <= container.kinds
    assert kinds_of(Call) == (container.kinds | desk.kinds) - kinds_of(Ticket) - kinds_of(Push)


def test_every_instruction_is_carried_out_by_one() -> None:
    """By a container as it is; or by a handler of the driver's. What is left is the loop's own."""
    tables = [Table(object.__new__(kind)) for kind in (ContainerHandlers, StoreHandlers, EpochJobs, IntakeHandlers)]
    handled = frozenset().union(*(table.kinds for table in tables))
    assert sum(len(table.kinds) for table in tables) == len(handled)
    known = [*vars(do).values(), *vars(offers).values(), *vars(pump).values()]
    every = {one for one in known if isinstance(one, type) and issubclass(one, Instruction)}
    sent = {one for one in every if issubclass(one, Call)}
    bases, to_pump = {Instruction, ToContainer, do.ToPump}, {one for one in every if issubclass(one, do.ToPump)}
    shells = {do.TellPeople, do.EndRun, do.Stop, pump.DecideFailed, pump.EndEpochs}
    told = {offers.FinishBatch, offers.FailBatch, offers.RefuseBatch}
    assert every - bases - to_pump - sent - handled == shells | told
    assert {one for one in sent if not issubclass(one, ToContainer)} == {VerifyPacks}


def test_a_handler_says_by_its_annotations_what_it_takes() -> None:
    class Good:
        @property
        def trap(self) -> int:
            raise AssertionError("nobody asks for it")

        @handler
        def ping(self, call: Ping) -> Pong:
            return Pong("c0", 1)

        @handler
        def undo(self, job: str, call: Undo) -> Undone:
            return Undone(job)

    table = Table(Good())
    ping, undo = table.find(Ping), table.find(Undo)
    assert ping is not None
    assert undo is not None
    assert (ping.about, undo.about) == (0, 1)
    assert table.find(Done) is None
    with pytest.raises(TypeError, match="has a handler already"):
        table.add(Good())

    class Wrong:
        @handler
        def ping(self, call: Ping) -> Done:
            return Done()

    with pytest.raises(TypeError, match="answers"):
        Table(Wrong())

    class Takes:
        @handler
        def nothing(self, call: int) -> None: ...

    with pytest.raises(TypeError, match="takes no call"):
        Table(Takes())


HEADERS = {
    "header",
    "answer",
    "about",
    "head",
    "ticket",
    "letter",
    "told",
    "figures",
    "reply",
    "call",
    "message",
    "news",
}
"""What dictionaries that crossed a module were called, and would be again."""


def untyped_reads(source: str) -> list[str]:
    """``header["x"]``, ``answer.get("x")``: reads of a field by its name."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if (
            isinstance(node, ast.Subscript)
            and isinstance(node.slice, ast.Constant)
            and isinstance(node.slice.value, str)
        ):
            value = node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get":
            if not (node.args and isinstance(node.args[0], ast.Constant) and isinstance(node.args[0].value, str)):
                continue
            value = node.func.value
        else:
            continue
        if isinstance(value, ast.Name) and value.id in HEADERS:
            found.append(f"line {node.lineno}: {ast.unparse(node)}")
    return found


def test_no_header_is_read_by_the_names_of_its_fields() -> None:
    assert untyped_reads('header["slices"] + answer.get("rows", 0)'), "it would see one"
    rooms = ("wire", "container", "ring", "driver", "launch", "master", "spark", "api", "recovery", "safety")
    files = [file for room in rooms for file in sorted((SOURCE / room).rglob("*.py"))]
    found = {str(file.relative_to(SOURCE)): reads for file in files if (reads := untyped_reads(file.read_text()))}
    assert not found


def test_containers_know_nothing_of_the_ring() -> None:
    """A package cycle before: the service takes its handlers from outside."""
    for file in (SOURCE / "container").rglob("*.py"):
        assert "holdfast.ring" not in file.read_text(), file
