"""Spark's checkpoint written anew: every place gets its source's offset, every source its own notes."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.errors import StoreError
from holdfast.log.store import Store
from holdfast.spark.rebase import COMMITTED, rebase


@pytest.fixture
def section(tmp_path: Path) -> Store:
    """Four batches over the places a, b, a; the third is the last that is done, and Spark has not noted that."""
    made = Store(str(tmp_path))
    made.write("spark/metadata", [b'{"id":"q"}'])
    for batch in range(4):
        lines = ["v1", '{"conf":{}}', f"a{batch}", f"b{batch}", f"a{batch}"]
        made.write(f"spark/offsets/{batch}", ["\n".join(lines).encode()])
        if batch < 2:
            made.write(f"spark/commits/{batch}", [b'v1\n{"nextBatchWatermarkMs":7}'])
    for number, name in enumerate("ab"):
        made.write(f"spark/sources/{number}/0", [f"{name}'s files".encode()])
        made.write(f"spark/sources/{number}/more/0", [f"{name}'s notes".encode()])
    return made


def offsets(section: Store, folder: str, batch: int) -> list[str]:
    return section.read(f"{folder}/offsets/{batch}").decode().splitlines()[2:]


def test_places_and_numbers_of_sources_are_those_of_the_new_plan(section: Store) -> None:
    rebase(section, "spark", "new", ["a", "b", "a"], ["b", "a", "b", "b"], 2)
    assert section.read("new/metadata") == b'{"id":"q"}'
    assert section.list("new/offsets") == section.list("new/commits") == ["1", "2"]
    assert offsets(section, "new", 2) == ["b2", "a2", "b2", "b2"]
    assert offsets(section, "new", 1) == ["b1", "a1", "b1", "b1"]
    assert section.read("new/commits/1") == section.read("spark/commits/1")
    assert section.read("new/commits/2") == COMMITTED
    for number, name in enumerate("ba"):
        assert section.read(f"new/sources/{number}/0") == f"{name}'s files".encode()
        assert section.read(f"new/sources/{number}/more/0") == f"{name}'s notes".encode()


def test_there_and_back_again_is_the_same(section: Store) -> None:
    rebase(section, "spark", "new", ["a", "b", "a"], ["b", "a"], 2)
    rebase(section, "new", "newer", ["b", "a"], ["a", "b", "a"], 2)
    assert offsets(section, "newer", 2) == offsets(section, "spark", 2)
    assert section.read("newer/sources/1/0") == section.read("spark/sources/1/0")


def test_a_source_that_goes_leaves_nothing(section: Store) -> None:
    rebase(section, "spark", "new", ["a", "b", "a"], ["b"], 0)
    assert section.list("new/offsets") == ["0"]
    assert offsets(section, "new", 0) == ["b0"]
    assert section.list_folders("new/sources") == ["0"]
    assert section.read("new/sources/0/0") == b"b's files"


def test_files_that_are_not_as_they_were_known_are_refused(section: Store) -> None:
    with pytest.raises(StoreError, match="3 offsets for 2 places"):
        rebase(section, "spark", "new", ["a", "b"], ["b"], 2)
    section.delete(["spark/offsets/2"])
    section.write("spark/offsets/2", [b"v2\n{}\na\nb\na"])
    with pytest.raises(StoreError, match="format v2"):
        rebase(section, "spark", "newer", ["a", "b", "a"], ["b"], 2)


def test_before_the_first_epoch_there_are_only_notes(section: Store) -> None:
    """Where a reader begins ("latest") may be noted before anything is done: it must not be found anew."""
    rebase(section, "spark", "new", ["a", "b", "a"], ["b", "a"], -1)
    assert section.list("new/offsets") == section.list("new/commits") == []
    assert section.read("new/metadata") == b'{"id":"q"}'
    assert section.read("new/sources/0/0") == b"b's files"
