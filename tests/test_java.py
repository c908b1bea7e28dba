"""Finding Java, with real executables that answer as Javas of several ages do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.errors import JavaError
from holdfast.java import find_java


def java(home: Path, version: str, says_home: str = "") -> Path:
    """A Java home whose ``java`` prints its version to standard error, as all of them do."""
    executable = home / "bin" / "java"
    executable.parent.mkdir(parents=True)
    settings = f"    java.home = {says_home}\n" if says_home else ""
    executable.write_text(f'#!/bin/sh\n/bin/cat >&2 <<END\n{settings}openjdk version "{version}" 2021\nEND\n')
    executable.chmod(0o755)
    return home


@pytest.fixture(autouse=True)
def no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))


def test_java_home_comes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    chosen = java(tmp_path / "chosen", "21.0.2")
    java(tmp_path / "jvm" / "a", "17.0.9")
    monkeypatch.setenv("JAVA_HOME", str(chosen))
    assert find_java(tmp_path / "jvm") == chosen


def test_an_old_java_home_is_passed_over_for_the_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(java(tmp_path / "old", "1.8.0_292")))
    monkeypatch.setenv("PATH", str(java(tmp_path / "good", "17.0.9") / "bin"))
    assert find_java(tmp_path / "jvm") == tmp_path / "good"


def test_behind_a_link_is_the_home_of_what_it_points_to(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    real = java(tmp_path / "real", "17.0.9")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(real / "bin" / "java")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert find_java(tmp_path / "jvm") == real


def test_behind_a_shim_java_itself_says_its_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shim = java(tmp_path / "shims", "21", says_home="/opt/java 21")
    monkeypatch.setenv("PATH", str(shim / "bin"))
    assert find_java(tmp_path / "jvm") == Path("/opt/java 21")


def test_of_several_installed_the_oldest_usable_is_taken(tmp_path: Path) -> None:
    for name, version in [("a", "25"), ("b", "11.0.2"), ("c", "17.0.9"), ("d", "21-ea")]:
        java(tmp_path / "jvm" / name, version)
    assert find_java(tmp_path / "jvm") == tmp_path / "jvm" / "c"


def test_only_old_ones_says_which_and_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    old = java(tmp_path / "old", "1.8.0_292")
    older = java(tmp_path / "jvm" / "eleven", "11.0.2")
    monkeypatch.setenv("JAVA_HOME", str(old))
    with pytest.raises(JavaError) as caught:
        find_java(tmp_path / "jvm")
    assert f"{old}/bin/java is Java 8" in caught.value.what
    assert f"{older}/bin/java is Java 11" in caught.value.what
    assert "install Java 17 or newer" in caught.value.todo
    assert "\n" not in caught.value.what + caught.value.todo


def test_a_java_home_without_java_and_one_that_is_no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    other = java(tmp_path / "other", "17")
    (other / "bin" / "java").write_text("#!/bin/sh\necho I am not Java\n")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nothing"))
    monkeypatch.setenv("PATH", str(other / "bin"))
    with pytest.raises(JavaError, match=r"nothing/bin/java does not run; .*other/bin/java does not run"):
        find_java(tmp_path / "jvm")


def test_none_at_all(tmp_path: Path) -> None:
    with pytest.raises(JavaError, match="none in JAVA_HOME, on the path or in") as caught:
        find_java(tmp_path / "jvm")
    assert caught.value.todo


def test_as_a_command_it_prints_the_home_or_one_line(tmp_path: Path) -> None:
    source = Path(__file__).parents[1] / "src"
    home = java(tmp_path / "good", "17")
    command = [sys.executable, "-m", "holdfast.java"]
    environment = {**os.environ, "PYTHONPATH": str(source), "JAVA_HOME": str(home)}
    good = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert good.stdout == f"{home}\n"
