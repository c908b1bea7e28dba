"""The reference has every public name, each in its program; the README is two screens."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import holdfast as hf

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("name", hf.__all__)
def test_every_public_name_is_in_the_reference_and_runs_there(name: str) -> None:
    text = (ROOT / "docs" / "reference.md").read_text()
    used = re.compile(rf"\bhf\.{name}\b")
    assert any(used.search(program) for program in BLOCK.findall(text)), f"no example uses hf.{name}"
    assert used.search(BLOCK.sub("", text)), f"nothing is said of hf.{name}"


def test_the_readme_is_two_screens_and_names_commands_that_are_there() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 120
    dev = (ROOT / "dev").read_text()
    for command, what in re.findall(r"\./dev (\w+)(?: (\w+))?", text):
        assert re.search(rf"^\s*{command}\b.*\)", dev, re.MULTILINE), f"./dev {command}"
        if command == "bench":
            assert (ROOT / "benchmarks" / f"{what}.py").exists(), what
