"""What a token is good for: the run's for all, a reader's for reading, a task's for its rows; and who sees it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow.flight as flight
import pytest
from test_container_process import PLAN, SLICES, Hosted, push, rows_of
from test_handlers import kinds_of

from holdfast.container.messages import Host
from holdfast.errors import FencedError, TokenError
from holdfast.log.records import Fence
from holdfast.ring.messages import AskPieces, Meet
from holdfast.wire import tokens
from holdfast.wire.authority import Authority
from holdfast.wire.client import Client
from holdfast.wire.codec import MessageError, Sender
from holdfast.wire.messages import Call, Forget, Push, Restore, Ticket, Undo
from holdfast.wire.passes import Pass
from holdfast.wire.questions import (
    AskSql,
    AskStatus,
    AskVersions,
    Describe,
    Get,
    Locate,
    Pin,
    Ping,
    Renew,
    RowsPush,
    ScanTicket,
    SetThreads,
)
from holdfast.wire.server import Server

READS = {Ping, Get, ScanTicket, Renew, AskVersions, AskPieces, Describe, Locate, AskSql}
PUSHES = {RowsPush}


@pytest.fixture
def hosted(tmp_path: Path) -> Iterator[Hosted]:
    made = Hosted(tmp_path)
    yield made
    made.close()


def test_what_is_open_to_whom_is_said_once_and_here() -> None:
    kinds = kinds_of(Call) | kinds_of(Ticket) | kinds_of(Push)
    assert {kind for kind in kinds if "reads" in kind.roles} == READS
    assert {kind for kind in kinds if "pushes" in kind.roles} == PUSHES


def test_a_readers_token_reads_and_does_nothing_else(hosted: Hosted, tmp_path: Path) -> None:
    writer, name, prepare = hosted.log(1, rows_of([1, 2, 1], [10, 20, 30]))
    hosted.apply(prepare)
    fence, every = Fence(9, 1, 1), frozenset(range(SLICES))
    with Client(hosted.client.address, tokens.token_for("reads", "secret"), Sender("j", 1)) as reader:
        assert reader.call(Ping()).container == "c0"
        assert sum(batch.num_rows for _, batch in reader.scan(ScanTicket("counts", 1, "read", (0, 1, 2, 3)))) == 2
        for call in (
            Host("k", (PLAN,), SLICES, str(tmp_path), "main"),
            Restore("c0", fence, every, 0, 0),
            Forget("c0", fence, every),
            Undo("c0", fence, every),
            SetThreads(2),
            Pin("r", 1),
            AskStatus(),
            Meet(()),
        ):
            with pytest.raises(TokenError, match=f"Who only reads may not ask for '{type(call).__name__}'"):
                reader.call(call)
        with pytest.raises(flight.FlightServerError, match="Who only reads may not ask for 'RowsPush'"):
            push(replace_client(hosted, reader), writer, name, [0])
    with Client(hosted.client.address, tokens.token_for("reads", "secret"), Sender("j", 99)) as replaced:
        list(replaced.scan(ScanTicket("counts", 1, "read", (0,))))
    assert hosted.read(1) == {1: (2, 40), 2: (1, 20)}, "a reader's number replaces no master"
    hosted.call(AskStatus(), 2)
    with (
        Client(hosted.client.address, tokens.token_for("reads", "secret"), Sender("j", 1)) as old,
        pytest.raises(FencedError),
    ):
        list(old.scan(ScanTicket("counts", 1, "read", (0,))))


def replace_client(hosted: Hosted, client: Client) -> Hosted:
    other = object.__new__(Hosted)
    other.__dict__.update(hosted.__dict__, client=client)
    return other


def test_a_tasks_token_pushes_rows_and_does_nothing_else(hosted: Hosted) -> None:
    writer, name, prepare = hosted.log(1, rows_of(list(range(100)), list(range(100))))
    with Client(hosted.client.address, tokens.token_for("pushes", "secret"), Sender("j", 1)) as task:
        push(replace_client(hosted, task), writer, name, [0, 1, 2, 3])
        with pytest.raises(TokenError, match="Who only pushes may not ask for 'ScanTicket'"):
            list(task.scan(ScanTicket("counts", 1, "read", (0,))))
        with pytest.raises(TokenError, match="Who only pushes may not ask for 'Ping'"):
            task.call(Ping())
    assert hosted.call(AskStatus()).staged > 0
    hosted.apply(prepare)
    assert len(hosted.read(1)) == 100


def test_what_is_kept_for_others_is_the_readers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    tokens.keep("job", 3, "secret")
    try:
        assert tokens.find("job", 3) == tokens.token_for("reads", "secret")
        (file,) = (tmp_path / f"holdfast-{os.getuid()}").iterdir()
        assert file.stat().st_mode & 0o777 == 0o600
    finally:
        tokens.forget("job", 3)
    with pytest.raises(TokenError, match="There is no token"):
        tokens.find("job", 3)


def test_a_readers_pass_has_the_papers_of_the_one_that_it_is_made_from() -> None:
    authority = Authority()
    server = Server("c0", Pass("secret", authority.papers("c0")).text, "127.0.0.1", "A container")
    reads = tokens.token_for("reads", Pass("secret", authority.papers("reader", answers=False)).text)
    try:
        with Client(server.address, reads) as reader:
            with pytest.raises(MessageError, match="does not take 'Ping'"):
                reader.call(Ping(), 30)
            with pytest.raises(TokenError, match="Who only reads may not ask for 'SetThreads'"):
                reader.call(SetThreads(2), 30)
    finally:
        server.shutdown()
    assert "secret" not in reads
