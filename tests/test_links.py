"""Documents that name files name what is in them: a link `[`Thing.part`](file.py)` finds that thing there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
_LINK = re.compile(r"\[([^\]]*)\]\(([^)#\s]+)(#[^)\s]*)?\)", re.S)
_NAME = re.compile(r"`([A-Za-z_][\w.]*)`")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    wrong = []
    for words, target, _ in _LINK.findall(document.read_text()):
        if "://" in target:
            continue
        file = (document.parent / target).resolve()
        if not file.exists():
            wrong.append(f"{target} is not there")
        elif file.suffix == ".py" and (name := _NAME.fullmatch(" ".join(words.split()))):
            wrong += [f"{target} has no '{part}'" for part in _parts(name[1], file) if not _has(file, part)]
    assert not wrong, "\n" + "\n".join(wrong)


def _parts(name: str, file: Path) -> list[str]:
    """`Class.method`: both; `module.py` and `module`: the file itself."""
    return [] if name in (file.name, file.stem) else [part for part in name.split(".") if part != file.stem]


def _has(file: Path, part: str) -> bool:
    """Defined there, or given a value, in the file or in a class of it."""
    return bool(
        re.search(rf"^\s*(?:(?:async )?def|class) {part}\b|^\s*(?:self\.)?{part}\b\s*[:=]", file.read_text(), re.M)
    )
