"""The suite's own scheduler: a worker that crashes is one failure, not a run that never ends."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import dealing

CONFTEST = """
import dealing

def pytest_xdist_make_scheduler(config, log):
    config.option.loadscopereorder = False
    return dealing.Dealing(config, log)
"""
TESTS = """
import os, pathlib, signal, time
import pytest

pytestmark = pytest.mark.spark  # dealt one by one

@pytest.mark.parametrize("number", range(30))
def test_number(number):
    time.sleep(0.05)
    if number == 20 and not pathlib.Path("crashed").exists():
        pathlib.Path("crashed").touch()
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_after_a_crash_the_others_go_on_and_the_run_ends(tmp_path: Path) -> None:
    tests = tmp_path / "tests"
    tests.mkdir()
    shutil.copy(dealing.__file__, tests)
    (tests / "conftest.py").write_text(CONFTEST)
    (tests / "test_numbers.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = tests\nmarkers = spark\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-n", "2", "-q", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1
    assert "crashed while running 'tests/test_numbers.py::test_number[20]'" in done.stdout
    assert "1 failed, 30 passed" in done.stdout  # the one that crashed it was tried again
