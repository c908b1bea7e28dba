"""The search step: what it finds makes it fail and is repeated by one line, and nothing else makes it fail."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tools import search
from tools.search import KINDS, Kind, Search, neediest

NOTHING = Kind("nothing", 1, ("-c", "print('7 passed')"), "")
BROKEN = Kind("broken", 1, ("-c", "import sys; print('seed', sys.argv[1]); sys.exit(3)", "{seed}"), "")
STUCK = Kind("stuck", 1, ("-c", "import subprocess; subprocess.run(['sleep', '1000'])"), "")
PLANTED = Kind(
    "job",
    1,
    ("-m", "simulator", "--first", "{seed}", "--seeds", "8", "--plant", "tests.master.planted_masters:CutsTooMuch"),
    "a master with a bug",
)


def searched(*kinds: Kind, grace: float = 1000.0) -> tuple[bool, Search, str]:
    told: list[str] = []
    one = Search(kinds, 0.0, grace=grace, tell=told.append)
    return one.run(), one, "\n".join(told)


def test_what_passes_is_counted() -> None:
    good, one, told = searched(NOTHING)
    assert good
    assert all(
        re.search(r"^nothing    seed \d{13}: passed after \d+ s \(7 passed\)$", line.line) for line in one.rounds
    )
    assert told.splitlines()[-1] == "search: 2 passed, 0 failed, 0 cut short; 1 kinds"
    assert len({one.seed for one in one.rounds}) == 2, "no two rounds are the same"


def test_what_fails_makes_it_red_and_says_how_to_repeat_it() -> None:
    good, one, told = searched(NOTHING, BROKEN)
    assert not good
    (failed,) = [one for one in one.rounds if one.failed]
    assert f"seed {failed.seed}\nTo repeat it: ./dev search --only broken --seed {failed.seed}\n" in told
    assert told.splitlines()[-2:] == [
        f"Failed, to repeat: ./dev search --only broken --seed {failed.seed}",
        "search: 1 passed, 1 failed, 0 cut short; 1 kinds",
    ]


def test_what_does_not_end_is_cut_short_and_is_no_failure() -> None:
    before = set(psutil.Process().children(recursive=True))
    good, _, told = searched(NOTHING, STUCK, grace=5.0)
    assert good
    assert "stuck" in told
    assert "search: 1 passed, 0 failed, 1 cut short; 1 kinds" in told
    assert set(psutil.Process().children(recursive=True)) <= before, "with all that it had started"


def test_whoever_ends_the_search_ends_all_of_it(tmp_path: Path) -> None:
    """As CI's time limit does: what it had started would go on for hours, and take the processors of others."""
    begun = tmp_path / "begun"
    script = (
        "import signal, sys\n"
        "from tools import search\n"
        "signal.signal(signal.SIGTERM, search.leave)\n"
        "what = f'import pathlib, time; pathlib.Path({sys.argv[1]!r}).touch(); time.sleep(1000)'\n"
        "search.Search([search.Kind('stuck', 1, ('-c', what), '')], 1000.0).run()\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script, str(begun)], cwd=search.ROOT, stderr=subprocess.DEVNULL)
    while not begun.exists():
        assert process.poll() is None
        time.sleep(0.05)
    children = psutil.Process(process.pid).children(recursive=True)
    process.terminate()
    assert process.wait(120) != 0
    assert children
    assert not psutil.wait_procs(children, 120)[1]


def test_nothing_searched_is_no_success() -> None:
    good, _, told = searched(STUCK, grace=0.0)
    assert not good
    assert "0 passed, 0 failed, 2 cut short" in told


def test_each_kind_gets_its_share() -> None:
    kinds, used = (Kind("much", 3, (), ""), Kind("little", 1, (), "")), {"much": 0.0, "little": 0.0}
    for _ in range(40):
        used[neediest(kinds, used).name] += 2.0
    assert used == {"much": 60.0, "little": 20.0}


def test_a_bug_in_the_master_is_found_and_the_line_repeats_it(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    good, one, told = searched(PLANTED)
    assert not good
    failed = next(one for one in one.rounds if one.failed)
    assert re.search(r"seed \d+: FAILED\n.*cut at the newest checkpoint", told)
    monkeypatch.setattr(search, "KINDS", (PLANTED,))
    words = failed.repeat.split()
    assert words[:2] == ["./dev", "search"]
    assert search.main(words[2:]) == 1
    again = capfd.readouterr()
    assert sorted((again.out + again.err).splitlines()[-1:]) == sorted(failed.said.splitlines()[-1:])


def test_the_tests_that_are_searched_are_random_ones_and_do_not_want_spark(capfd: pytest.CaptureFixture[str]) -> None:
    """By what the command itself would run: state machines, drills with a seed; nothing planted, nothing on Spark."""
    kind = next(kind for kind in KINDS if kind.name == "masters")
    listed = Kind("masters", 1, (*kind.command, "--collect-only"), "")
    assert search.repeated(listed, 5) == 0
    names = capfd.readouterr().out
    assert "test_master_properties.py::TestMasters::runTest" in names
    assert "test_master_properties.py::TestMastersOnTheRing::runTest" in names
    assert "test_feed_properties.py::test_every_batch_is_in_one_block_and_every_block_in_one_epoch[5-0]" in names
    assert "planted" not in names


def test_every_kind_is_there_once_and_its_places_exist() -> None:
    assert len({kind.name for kind in KINDS}) == len(KINDS)
    for kind in KINDS:
        places = [word for word in kind.command if word.startswith("tests/")]
        assert all((search.ROOT / place).is_dir() for place in places)
        assert ("pytest" in kind.command) == bool(places)
        assert sum(word == "{seed}" for word in kind.command) >= 1


def test_hash_seeds_differ_from_round_to_round() -> None:
    assert [search.environment(seed)["PYTHONHASHSEED"] for seed in (5, 2**32 + 6)] == ["5", "6"]
    assert search.environment(5)["PYTHONPATH"] == str(Path(__file__).parents[2])
