"""``holdfast sql``: a script that runs as a job, and questions to it from another process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from holdfast.cli import main
from holdfast.cli.sql import _PART

SCRIPT = """
CREATE STREAM clicks (product STRING, cents BIGINT) USING json OPTIONS (path '{folder}/in');
CREATE TABLE totals USING parquet OPTIONS (path '{folder}/out');
CREATE VIEW dear AS SELECT product, cents FROM clicks WHERE cents > 100;
INSERT INTO totals SELECT product, sum(cents) AS cents, count(*) AS n FROM dear GROUP BY product;
"""
HOLDFAST = [sys.executable, "-m", "holdfast.cli", "sql"]


def asked(store: Path, text: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*HOLDFAST, "--store", str(store)], input=text, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.drivers
@pytest.mark.spark
def test_a_script_runs_and_is_asked_while_it_runs(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.json").write_text('{"product": "ant", "cents": 120}\n{"product": "bee", "cents": 20}\n')
    script, store = tmp_path / "shop.sql", tmp_path / "state"
    script.write_text(SCRIPT.format(folder=tmp_path))
    run = subprocess.Popen(
        [*HOLDFAST, str(script), "--store", str(store), "--containers", "1"], stderr=subprocess.PIPE, text=True
    )
    try:
        deadline = time.monotonic() + 300
        while "ant" not in (found := asked(store, "SELECT product, cents FROM totals;")).stdout:
            assert time.monotonic() < deadline, found.stderr
            assert run.poll() is None, run.stderr.read() if run.stderr else ""
            time.sleep(0.5)
        assert "120" in found.stdout
        assert "1 rows, epoch 1" in found.stdout
        wrong = asked(store, "SELECT colour FROM totals; SELECT x FROM nowhere")
        assert wrong.returncode == 1
        assert "colour" in wrong.stderr
        assert "there is no stage 'nowhere'" in wrong.stderr
        assert "^^^^^^^" in wrong.stderr
        both = asked(store, "SELECT count(*) AS n FROM totals; EXPLAIN SELECT * FROM totals")
        assert both.returncode == 0
        assert "answered by DuckDB" in both.stdout
    finally:
        run.send_signal(signal.SIGINT)
        _, said = run.communicate(timeout=120)
    assert run.returncode == 130, said
    assert "Job 'shop' runs" in said
    assert any(name.suffix == ".parquet" for name in (tmp_path / "out").iterdir())
    gone = asked(store, "SELECT 1")
    assert gone.returncode == 1
    assert "not running" in gone.stderr


def test_what_cannot_be_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sql"]) == 1
    assert "neither a file nor a store" in capsys.readouterr().err
    assert main(["sql", "--store", str(tmp_path)]) == 1
    assert "No job has ever run" in capsys.readouterr().err
    assert main(["sql", str(tmp_path / "none.sql")]) == 1
    assert "There is no file" in capsys.readouterr().err


def test_questions_of_a_pipe_end_at_semicolons_outside_of_quotes() -> None:
    assert _PART.findall("SELECT ';' AS a; SELECT `;`") == ["SELECT ';' AS a", " SELECT `;`"]


def test_the_environment_is_left_as_it_was() -> None:
    before = dict(os.environ)
    assert main(["sql"]) == 1
    assert dict(os.environ) == before
