"""What is carried on of graphs whose files are gone: no name or number is given twice, and it does not grow."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any

import pytest

from holdfast.log import past
from holdfast.log.graphs import Graphs
from holdfast.log.past import CHANGES_TOLD, Names, Past
from holdfast.log.records import GraphFile, JobFile


def stage(name: str, number: int) -> dict[str, Any]:
    return {"name": name, "inputs": [{"level": 1, "number": number}]}


def graph(version: int, *stages: dict[str, Any], text: str = "", live: bool = True) -> GraphFile:
    changes = [text] if text else []
    return GraphFile(version, 0, 1, {}, list(stages), changes, [], [], version, live=live, former=version - 1)


def test_no_name_is_given_twice_though_most_are_forgotten(monkeypatch: pytest.MonkeyPatch, drill_seed: int) -> None:
    monkeypatch.setattr(past, "NAMES_KEPT", 5)
    for seed in range(50 * drill_seed, 50 * drill_seed + 50):
        draw, names, had = random.Random(seed), Names(), set[str]()
        for _ in range(150):
            asked = f"job{draw.randrange(12)}/x" + draw.choice(["", "", "~3", "~2~2", "~x"])
            given = names.free(asked)
            assert given not in had, seed
            assert given == asked or given.startswith(f"{asked}~"), seed
            if draw.random() < 0.2:  # drawn, and one with another
                names = names.with_names([given]).without(given)
                continue
            had.add(given)
            names = names.with_names([given])
            names = Names(**json.loads(json.dumps({"highest": names.highest, "floor": names.floor})))
            assert len(names.highest) <= 5


def test_names_are_plain_as_long_as_they_can_be() -> None:
    names = Names().with_names(["late/dear", "totals/sums"])
    assert names.free("late/cheap") == "late/cheap"
    assert names.free("late/dear") == "late/dear~2"
    assert names.with_names(["late/dear~2"]).free("late/dear") == "late/dear~3"
    assert names.with_names(["late/dear~2"]).without("late/dear~2").free("late/dear") == "late/dear~2"


def test_the_newest_graph_says_what_all_of_them_said() -> None:
    """Whether the files of those before it are there or not."""
    first = JobFile("j", "job", {}, 2, 0, stages=[stage("a/x", 0)])
    later = [
        graph(1, stage("a/x", 0), stage("b/y", 7), text="b came"),
        graph(2, stage("a/x", 0), text="b went"),
        graph(3, stage("a/x", 0), text="never counted"),
        replace(graph(4, stage("a/x", 0), stage("c/z", 8), text="c came"), former=2),
    ]
    whole = Past.of(Graphs(first, tuple(later)))
    assert [one.text for one in whole.changes] == ["b came", "b went", "c came"]
    assert whole.input == 8
    assert {*whole.names.highest} == {"a/x", "b/y", "c/z"}
    carried = replace(later[3], past=Past.of(Graphs(first, tuple(later[:2]))).to_dict())
    read = GraphFile.from_bytes(carried.to_bytes(), carried.file)
    assert Past.of(Graphs(first, (read,))) == whole
    assert Past.of(Graphs(first, (*later[2:3], read))) == whole


def test_what_is_carried_does_not_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(past, "NAMES_KEPT", 50)
    first = JobFile("j", "job", {}, 2, 0, stages=[stage("a/x", 0)])
    newest: tuple[GraphFile, ...] = ()
    sizes = []
    for version in range(1001, 1401):
        carried = Past.of(Graphs(first, newest)).to_dict()
        text = f"late{version} came" + "!" * 3000
        made = graph(version, stage("a/x", 0), stage(f"late{version}/y", version), text=text)
        newest = (replace(made, past=carried),)
        sizes.append(len(newest[0].to_bytes()))
    assert sizes[200] == sizes[-1]
    found = Past.of(Graphs(first, newest))
    assert [one.version for one in found.changes] == [*range(1401 - CHANGES_TOLD, 1401)]
    assert found.names.free("late1001/y") == "late1001/y~2"
    assert found.input == 1400
