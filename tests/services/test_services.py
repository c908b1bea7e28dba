"""Real services, a driver killed between each sink and the commit: rows that come twice are known by what they
carry."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fetching
import pytest
from kit import Ended, finish

import holdfast as hf

pytestmark = [pytest.mark.services, pytest.mark.timeout(560)]

EPOCHS, ROWS = 5, 100
"""Messages come in order, so many an epoch: what each epoch must say can be counted."""


class Driver:
    def __init__(self, base: Path, **config: Any) -> None:
        self.base, self.config = base, config
        (base / "faults").mkdir()

    def run(self, **changes: Any) -> Ended:
        config = self.base / "config.json"
        config.write_text(json.dumps({**self.config, **changes}))
        process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("services_driver.py")), str(config)],
            env={
                **os.environ,
                "HOLDFAST_FAULTS": str(self.base / "faults"),
                "DRILL": str(config),
                "PYSPARK_PYTHON": sys.executable,
            },
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.base,
        )
        return finish(process, 200)

    def plant(self, fault: str) -> None:
        (self.base / "faults" / fault).touch()


@pytest.fixture
def driver(tmp_path: Path, kafka: str, postgres: int) -> Driver:
    return Driver(
        tmp_path,
        kafka=kafka,
        postgres=postgres,
        jars=[str(jar) for jar in fetching.jars("spark")],
        packages=str(fetching.packages()),
        store=str(tmp_path / "store"),
        result=str(tmp_path / "result.json"),
        per_epoch=ROWS,
        dbtable="totals",
        first="topic",
    )


@pytest.fixture
def database(postgres: int) -> Iterator[Any]:
    import pg8000.dbapi as pg

    with contextlib.closing(pg.connect("holdfast", database="postgres", host="127.0.0.1", port=postgres)) as connection:
        yield connection


def ask(database: Any, statement: str) -> list[tuple[Any, ...]]:
    cursor = database.cursor()
    cursor.execute(statement)
    found = [tuple(row) for row in cursor.fetchall()] if cursor.description else []
    database.commit()
    return found


def oracle() -> dict[tuple[int, int], int]:
    """(epoch, key) → how many messages of the key there were by then, for the keys that the epoch had."""
    counts: Counter[int] = Counter()
    truth: dict[tuple[int, int], int] = {}
    for epoch in range(1, EPOCHS + 1):
        keys = [number % 37 for number in range((epoch - 1) * ROWS, epoch * ROWS)]
        counts.update(keys)
        truth |= {(epoch, key): counts[key] for key in keys}
    return truth


def test_what_comes_twice_is_known_and_the_rest_is_the_truth(driver: Driver, database: Any) -> None:
    ask(database, "CREATE TABLE own (epoch bigint, k int, n bigint)")
    ask(database, "CREATE TABLE bare (k int, n bigint)")
    # Each time another sink is the first, and the driver dies between it and the note that it has the epoch.
    for first, epoch in (("topic", 2), ("table", 3), ("own", 4)):
        driver.plant(f"driver@mid-sink@{epoch}")
        ended = driver.run(first=first, **({"produce": EPOCHS * ROWS, "bare": "bare"} if epoch == 2 else {}))
        assert ended.killed, f"{first}: {ended.error}"
    ended = driver.run()
    assert ended.code == 0, ended.error
    refused = (driver.base / "refused").read_text()
    assert "has no _job, _sink, _epoch" in refused
    assert "stamp=False" in refused

    truth = oracle()
    result = json.loads(Path(driver.config["result"]).read_text())
    final = {k: max(n for (_, key), n in truth.items() if key == k) for k in range(37)}
    assert {row["k"]: row["n"] for row in result["state"]} == final

    job = json.loads((Path(driver.config["store"]) / "job.json").read_text())["job_id"]
    out = result["out"]
    assert {(one["holdfast-job"], one["holdfast-sink"]) for one in out} == {(job, "topic")}
    check([(int(one["holdfast-epoch"]), int(one["key"]), int(one["value"])) for one in out], twice={2})

    assert ask(database, "SELECT DISTINCT _job, _sink FROM totals") == [(job, "table")]
    check(ask(database, "SELECT _epoch, k, n FROM totals"), twice={3})

    check(ask(database, "SELECT epoch, k, n FROM own"), twice=set())
    assert ask(database, "SELECT job, sink, epoch FROM holdfast_epochs") == [(job, "own", EPOCHS)]


def check(rows: list[tuple[int, int, int]], twice: set[int]) -> None:
    """Without what comes twice it is the truth; and what comes twice are whole epochs with the same rows."""
    seen = Counter((epoch, key, n) for epoch, key, n in rows)
    assert {(epoch, key): n for epoch, key, n in seen} == oracle()
    assert len(seen) == len(oracle())
    assert {epoch for (epoch, _, _), times in seen.items() if times > 1} == twice
    assert all(times == (2 if epoch in twice else 1) for (epoch, _, _), times in seen.items())


def test_of_drivers_that_race_for_an_epoch_one_writes_it(postgres: int, database: Any) -> None:
    import pg8000.dbapi as pg

    ask(database, "CREATE TABLE raced (epoch bigint)")
    together, answers = threading.Barrier(4), []

    def drive() -> None:
        with contextlib.closing(pg.connect("holdfast", database="postgres", host="127.0.0.1", port=postgres)) as mine:
            for number in range(1, 21):
                together.wait()
                with hf.once(mine, hf.Epoch(number, "racing", "s"), table="racing_epochs") as new:
                    if new:
                        mine.cursor().execute("INSERT INTO raced VALUES (%s)", (number,))
                answers.append(new)

    threads = [threading.Thread(target=drive) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert Counter(answers) == {True: 20, False: 60}
    assert ask(database, "SELECT epoch FROM raced ORDER BY 1") == [(number,) for number in range(1, 21)]
    assert ask(database, "SELECT * FROM racing_epochs") == [("racing", "s", 20)]
    with pytest.raises(ValueError, match="half way"):
        fail_half_way(database)
    assert ask(database, "SELECT max(epoch) FROM raced") == [(20,)]
    database.autocommit = True
    with pytest.raises(hf.PlanError, match="commits every statement"):
        hf.once(database, hf.Epoch(22, "racing", "s")).__enter__()
    database.autocommit = False


def fail_half_way(database: Any) -> None:
    with hf.once(database, hf.Epoch(21, "racing", "s"), table="racing_epochs"):
        database.cursor().execute("INSERT INTO raced VALUES (21)")
        raise ValueError("half way")
