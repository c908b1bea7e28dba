"""Graphs that are made while a job runs, and notes of what an epoch goes on without, as files: which of them count."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.errors import FencedError
from holdfast.log.ledger import Ledger
from holdfast.log.records import FEED, Fence, GraphFile, JobFile, Prepare, Range
from holdfast.log.store import Store


def ledger(path: Path, *, hub: bool = True) -> Ledger:
    made = Ledger(Store(str(path)), "main")
    names = {"a/x": "a/x"} if hub else {}
    made.open_or_create_job(JobFile("j", "job", {}, 2, 0, stages=[{"name": "a/x"}], names=names))
    return made


def graph(version: int, former: int) -> GraphFile:
    names = {"a/x": "a/x"}
    return GraphFile(version, 0, 1, {}, [{"name": "a/x"}], [], [], [], 0, live=True, former=former, names=names)


def prepare(epoch: int, incarnation: int = 1) -> Prepare:
    return Prepare(Fence(incarnation, epoch, 1), 1, {FEED: Range(epoch, epoch)}, (), clock=0)


def test_a_graph_counts_from_the_prepare_on_that_names_it(tmp_path: Path) -> None:
    first = ledger(tmp_path)
    first.put_prepare(prepare(1))
    first.put_graph(graph(1, 0))
    assert ledger(tmp_path).graph() is None, "no prepare names it yet"
    first.put_prepare(prepare(2))
    found = ledger(tmp_path).graph()
    assert found is not None
    assert found.version == 1


def test_one_that_never_counted_keeps_its_number(tmp_path: Path) -> None:
    died = ledger(tmp_path)
    died.put_prepare(prepare(1))
    died.put_graph(graph(1, 0))
    after = ledger(tmp_path)
    assert after.graph() is None
    assert after.next_graph() == 2
    after.put_graph(graph(2, 0))
    after.put_prepare(prepare(2, 2))
    found = ledger(tmp_path)
    assert found.graphs().before(2) == [2, 0]
    late = died.section.read(Prepare.file_of(2, 1))
    assert Prepare.from_bytes(late, "").graph == 2
    with pytest.raises(FencedError, match="another driver was at work while the job was changed"):
        died.put_prepare(prepare(2))


def test_a_prepare_of_a_graph_that_its_driver_does_not_have_stops_the_driver(tmp_path: Path) -> None:
    replaced, successor = ledger(tmp_path), ledger(tmp_path)
    replaced.put_prepare(prepare(1))
    assert successor.graph() is None
    replaced.put_graph(graph(1, 0))
    replaced.put_prepare(prepare(2))
    with pytest.raises(FencedError, match="version 1 of the job's graph, and this driver has version 0"):
        successor.put_prepare(prepare(2, 2))


def test_who_is_left_out_is_settled_before_the_first_sink(tmp_path: Path) -> None:
    one, other = ledger(tmp_path), ledger(tmp_path)
    one.put_prepare(prepare(1))
    assert not one.applied(1)
    other.seal(Fence(2, 1, 0), ())
    assert one.applied(1)
    other.seal(Fence(3, 1, 0), ())  # a start after that one finds it as it left it
    with pytest.raises(FencedError):
        one.seal(Fence(1, 1, 0), ("a/x",))
    found = one.get_prepare(1, 1)
    assert found is not None
    assert found.left_out == ()


def test_a_note_that_comes_first_stops_whoever_applied_without_it(tmp_path: Path) -> None:
    one, other = ledger(tmp_path), ledger(tmp_path)
    one.put_prepare(prepare(1))
    one.leave_out(Fence(1, 1, 0), ["a/x"], "it raised")
    with pytest.raises(FencedError, match="and without other jobs"):
        other.seal(Fence(2, 1, 0), ())
    other.seal(Fence(3, 1, 0), ("a/x",))
    found = one.get_prepare(1, 1)
    assert found is not None
    assert found.left_out == ("a/x",)


def test_a_job_alone_has_marks_as_before(tmp_path: Path) -> None:
    alone = ledger(tmp_path, hub=False)
    alone.put_prepare(prepare(1))
    alone.seal(Fence(1, 1, 0), ())
    assert alone.applied(1)
    assert alone.section.list("prepare") == ["0000000001.1", "0000000001.applied0"]
