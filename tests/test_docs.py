"""The examples in the documents and docstrings run as they stand.

All ``python`` blocks of one document are one program, run in an empty folder, with the lines where the document
has them, so that a traceback points into the document. A block fenced as ``python no-run`` is not run.

The programs run one after another in one process, since most of what one takes is the start of its JVM. The README's is
the first, in an interpreter as fresh as a newcomer's; the containers of all others are of one nursery (``incubator``).
"""

from __future__ import annotations

import doctest
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
HERE = ROOT / "tests"
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
RUNNER = """
import os, runpy, shutil, sys, traceback

for number, script in enumerate(sys.argv[1:]):
    if number == 1:
        import incubator, pytest

        incubator.share(pytest.MonkeyPatch())
    if number:
        from pyspark.sql import SparkSession

        if spark := SparkSession.getActiveSession():
            spark.sparkContext.setLogLevel("WARN")
            for key, _ in spark.sparkContext.getConf().getAll():  # of the first session the JVM keeps them
                if not key.startswith(("spark.master", "spark.app.", "spark.submit.")):
                    spark._jvm.java.lang.System.clearProperty(key)
            spark.stop()
        for entry in os.scandir():  # a JVM stays in the folder it was started in, so that is made empty again
            shutil.rmtree(entry) if entry.is_dir() else os.unlink(entry)
    print("\\nBEGINS", script, flush=True)
    try:
        runpy.run_path(script, run_name="__main__")
    except (Exception, SystemExit):
        traceback.print_exc()
    else:
        print("\\nRAN", script, flush=True)
if "incubator" in sys.modules:
    incubator.close()
"""
FENCE = re.compile(r"^(?P<fence>`{3,})(?P<info>.*)$")


def program(document: str) -> str:
    """The document with everything but its code blanked out."""
    kept: list[str] = []
    fence, runs = "", False
    for line in document.splitlines():
        found = FENCE.match(line)
        if found and not fence:
            fence, runs = found["fence"], found["info"].strip() == "python"
            kept.append("")
        elif fence and line.strip() == fence:
            fence, runs = "", False
            kept.append("")
        else:
            kept.append(line if runs else "")
    assert not fence, "a code block is never closed"
    return "\n".join(kept) + "\n"


def programs() -> list[Path]:
    """The README first, and at the end one that leaves a session running, as a program of a few lines does."""
    found = [document for document in DOCUMENTS if program(document.read_text()).strip()]
    return sorted(found, key=lambda one: (one != ROOT / "README.md", "SparkSession" in program(one.read_text())))


def modules_with_examples() -> list[str]:
    files = sorted(file for file in (SOURCE / "holdfast").rglob("*.py") if ">>> " in file.read_text())
    return [".".join(file.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__") for file in files]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, str]:
    """What each program printed; the last one also how the process ended, if not well."""
    folder = tmp_path_factory.mktemp("programs")
    (folder / "empty").mkdir()
    scripts = {document: folder / f"{document.stem}.py" for document in programs()}
    for document, script in scripts.items():
        script.write_text(program(document.read_text()))
    done = subprocess.run(
        [sys.executable, "-u", "-c", RUNNER, *map(str, scripts.values())],
        cwd=folder / "empty",
        env={
            **os.environ,
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": os.pathsep.join(map(str, [ROOT, SOURCE, HERE])),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    output = done.stdout if done.returncode == 0 else f"{done.stdout}\nENDED {done.returncode}\n"
    parts = re.split(r"^BEGINS (.*)\n", output, flags=re.MULTILINE)
    printed = dict(zip(parts[1::2], parts[2::2], strict=True))
    return {document: printed.get(str(script), output) for document, script in scripts.items()}


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.parametrize("document", programs(), ids=lambda file: str(file.relative_to(ROOT)))
def test_document(document: Path, told: dict[Path, str]) -> None:
    text = told[document]
    assert re.search(rf"^RAN .*{document.stem}\.py$", text, re.MULTILINE), text[-8000:]
    assert not re.search(r"^ENDED", text, re.MULTILINE), text[-8000:]


@pytest.mark.parametrize("name", modules_with_examples())
def test_docstrings(name: str) -> None:
    failed, tried = doctest.testmod(importlib.import_module(name))
    assert tried
    assert not failed


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda file: str(file.relative_to(ROOT)))
def test_links_lead_to_files_that_are_there(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)", document.read_text()):
        if not re.match(r"[a-z]+:", target):
            assert (document.parent / target).exists(), f"{document.name} links to {target}"


def test_the_tests_that_documents_name_are_there() -> None:
    """A table that says what is shown by which test is no better than the tests there are."""
    tests = [path.read_text() for path in (ROOT / "tests").rglob("*.py")]
    there = {name for text in tests for name in re.findall(r"def (test_\w+)", text)}
    named = {name for document in DOCUMENTS for name in re.findall(r"`(test_\w+)(?:\[[^`]*\])?`", document.read_text())}
    assert len(named) > 100
    assert named - there - {path.stem for path in (ROOT / "tests").rglob("test_*.py")} == set()


def test_a_program_keeps_the_lines_of_its_document() -> None:
    document = "# A\n```python\na = 1\n```\ntext\n```bash\nls\n```\n```python no-run\n!\n```\n````python\nb = a\n````\n"
    lines = program(document).splitlines()
    assert {number: line for number, line in enumerate(lines, 1) if line} == {3: "a = 1", 13: "b = a"}
