"""Spam campaigns (ELF's fourth application) for five minutes: a file of mails a second, 20 live changes, checked.

The hub of ``examples/spam_campaigns.py``, with more campaigns: whoever is on duty adds jobs that follow one, narrows
their filters, keeps campaigns out of the ranking and takes jobs away again. A file is an epoch, and each update says
from which epoch on it counts, so a batch query over the same files knows what each job must hold. The rate is that of
all rows, from the first file to the commit of the last.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import shutil
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
from common import choose, files_of, measure_apart, median, parser, report, scratch, session, table

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "spam_campaigns.py"
TEMPLATES, CAMPAIGNS, SENDERS = 50, 5, 3000
DIFFERENT = 30  # so many files are unlike; then they come again
COUNTRIES = ("BR", "FR", "IN", "NZ")


def example() -> Any:
    sys.path.insert(0, str(EXAMPLE.parent))
    spec = importlib.util.spec_from_file_location("spam_campaigns", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def folder_of(rows: int) -> Path:
    """As the example has them, but made by columns; a few templates are campaigns of few senders."""

    def columns(random: np.random.Generator) -> Mapping[str, Any]:
        spam = random.random(rows) < 0.3
        template = np.where(spam, random.integers(0, CAMPAIGNS, rows), random.integers(0, TEMPLATES, rows))
        sender = np.where(spam, random.integers(0, 8, rows), random.integers(8, SENDERS, rows))
        return {
            "template": pa.array([f"template {number}" for number in range(TEMPLATES)]).take(pa.array(template)),
            "sender": pa.array([f"host {number}" for number in range(SENDERS)]).take(pa.array(sender)),
            "country": pa.array(COUNTRIES).take(pa.array(random.choice(4, rows, p=[0.3, 0.2, 0.4, 0.1]))),
            "bytes": random.integers(0, 50_000, rows),
        }

    return files_of(f"spam-{DIFFERENT}-{rows}", DIFFERENT, columns)


@dataclass
class Followed:
    """A job that follows a campaign: which rows it had, by epoch."""

    campaign: int
    since: int
    narrowed: int | None = None
    until: int | None = None


@dataclass
class Duty:
    """What somebody does who watches: one of these, in turn."""

    hub: Any
    run: Any
    jobs: dict[str, Followed] = field(default_factory=dict)
    kept_out: list[tuple[int, int]] = field(default_factory=list)
    """From which epoch on which campaign is not in the ranking."""
    milliseconds: list[float] = field(default_factory=list)

    def change(self, number: int) -> None:
        began, name = time.perf_counter(), f"campaign{number // 4}"
        campaign = number // 4 % CAMPAIGNS
        template = f"template {campaign}"
        match number % 4:
            case 0:
                job = self.hub.job(name, creator="on duty")
                job.sql(
                    "SELECT sender, country, count(*) AS mails, sum(bytes) AS bytes FROM mails "
                    f"WHERE template = '{template}' GROUP BY sender, country",
                    name="senders",
                )
                self.jobs[name] = Followed(campaign, self.run.add(job).epoch)
            case 1:
                narrow = f"template = '{template}' AND country IN ('BR', 'IN')"
                self.jobs[name].narrowed = self.run.update(f"{name}/senders", where=narrow).epoch
            case 2:
                out = [one for _, one in self.kept_out] + [campaign]
                where = "bytes > 0 AND template NOT IN (" + ", ".join(f"'template {one}'" for one in out) + ")"
                self.kept_out.append((self.run.update("templates/counts", where=where).epoch, campaign))
            case 3 if number >= 7:  # the one before: two are followed at any time
                gone = f"campaign{number // 4 - 1}"
                self.jobs[gone].until = self.run.remove(gone).epoch
            case _:
                self.run.update(f"{name}/senders", where=f"template = '{template}' AND country IN ('IN', 'BR')")
        self.milliseconds.append(1000 * (time.perf_counter() - began))


class Epochs(threading.Thread):
    """Which epochs have rows, in their order: each is one file."""

    def __init__(self, run: Any) -> None:
        super().__init__()
        self.run_, self.with_rows, self.at = run, list[int](), list[float]()
        self._over = threading.Event()
        self._seen = 0

    def run(self) -> None:
        while not self._over.wait(0.02):
            self._look()
        self._look()

    def _look(self) -> None:
        for epoch in range(self._seen + 1, self.run_._shell.machine.committed + 1):
            if self.run_._ledger.get_prepare(epoch, 1).ranges["source"]:
                self.with_rows.append(epoch)
                self.at.append(time.perf_counter())
            self._seen = epoch

    def close(self) -> None:
        self._over.set()
        self.join()


def contestant(spark: Any, folder: Path, seconds: int, changes: int) -> dict[str, Any]:
    import holdfast as hf

    spam, files = example(), sorted(folder.iterdir())
    with scratch() as own:
        source = own / "mails"
        source.mkdir()
        hub = hf.Hub("spam", spark, store=own / "store")
        reader = spark.readStream.schema(spam.SCHEMA).option("maxFilesPerTrigger", 1)
        spam.draw(hub, reader.parquet(str(source)))
        warm = 10
        with hub.start(containers=2) as run:
            epochs = Epochs(run)
            epochs.start()
            duty = Duty(hub, run)

            def put(number: int) -> None:
                shutil.copyfile(files[number % DIFFERENT], source / f".{number:04d}")
                (source / f".{number:04d}").rename(source / f"{number:04d}.parquet")

            for number in range(warm):
                put(number)
            run.process_all_available()
            began = time.perf_counter()

            def watch() -> None:
                for number in range(changes):
                    time.sleep(max(0.0, began + (number + 1) * seconds / (changes + 1) - time.perf_counter()))
                    duty.change(number)

            watcher = threading.Thread(target=watch)
            watcher.start()
            for number in range(warm, warm + seconds):
                put(number)
                time.sleep(max(0.0, began + (number - warm + 1) - time.perf_counter()))
            run.process_all_available()
            watcher.join()
            run.process_all_available()
            epochs.close()
            behind = [at - began - number for number, at in enumerate(epochs.at[warm:])]
            found = {"templates/counts": run.state("templates/counts").to_arrow()}
            for name, job in duty.jobs.items():
                if job.until is None:
                    found[f"{name}/senders"] = run.state(f"{name}/senders").to_arrow()
        assert len(epochs.with_rows) == warm + seconds, (len(epochs.with_rows), warm + seconds)
        return {
            "seconds": epochs.at[-1] - began,
            "behind": behind,
            "changes": len(duty.milliseconds),
            "change_ms": median(duty.milliseconds),
            "compared": sorted(found),
            "wrong": wrong(found, duty, files, epochs.with_rows),
        }


def wrong(found: dict[str, pa.Table], duty: Duty, files: list[Path], epochs: list[int]) -> list[str]:
    """The stages that are not what a batch query over the files says, each row by its epoch's version."""
    with duckdb.connect() as database:
        database.register("taken", pa.table({"epoch": epochs, "file": [at % DIFFERENT for at in range(len(epochs))]}))
        database.execute("CREATE TABLE mails (file INT, template TEXT, sender TEXT, country TEXT, bytes BIGINT)")
        for at, file in enumerate(files):
            database.execute(f"INSERT INTO mails SELECT {at}, template, sender, country, bytes FROM '{file}'")
        kept = "".join(f" AND (epoch < {since} OR template <> 'template {one}')" for since, one in duty.kept_out)
        truths = {
            "templates/counts": "SELECT template, count(*)::BIGINT AS mails FROM mails JOIN taken USING (file) "
            f"WHERE bytes > 0{kept} GROUP BY template"
        }
        for name, job in duty.jobs.items():
            narrow = "" if job.narrowed is None else f" AND (epoch < {job.narrowed} OR country IN ('BR', 'IN'))"
            truths[f"{name}/senders"] = (
                "SELECT sender, country, count(*)::BIGINT AS mails, sum(bytes)::BIGINT AS bytes "
                f"FROM mails JOIN taken USING (file) WHERE template = 'template {job.campaign}' "
                f"AND epoch >= {job.since}{narrow} GROUP BY ALL"
            )
        failed = []
        for name, rows in found.items():
            expected = database.execute(truths[name]).to_arrow_table()
            columns = expected.column_names
            if not len(expected) or _sorted(rows.select(columns)) != _sorted(expected):
                failed.append(name)
        return failed


def _sorted(rows: pa.Table) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in rows.to_pylist())


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--seconds", type=int, default=300)
    made.add_argument("--rows", type=int, default=70_000, help="of a file, one a second")
    made.add_argument("--changes", type=int, default=20)
    choose(made, ["hub"])
    options = made.parse_args()
    if options.quick:
        options.seconds, options.changes = 40, 8
    folder = folder_of(options.rows)
    if options.contestant:
        with session(options.memory) as spark:
            print(json.dumps(contestant(spark, folder, options.seconds, options.changes)))
        return
    show(options, measure_apart("hub"))


def show(options: argparse.Namespace, found: dict[str, Any]) -> None:
    rate = options.seconds * options.rows / found["seconds"]
    shown = table(f"{options.seconds} s, {options.rows:,} mails a second", "what", "figure")
    shown.add_row("mails a second, with the last commit", f"{rate:,.0f}")
    shown.add_row("file to commit, median", f"{1000 * median(found['behind']):.0f} ms")
    shown.add_row("file to commit, longest", f"{1000 * max(found['behind']):.0f} ms")
    shown.add_row("live changes", str(found["changes"]))
    shown.add_row("a change, from the call to its prepare, median", f"{found['change_ms']:.0f} ms")
    shown.add_row("stages compared", ", ".join(found["compared"]))
    shown.add_row("wrong", ", ".join(found["wrong"]) or "none")
    result = {
        "events_per_second": rate,
        "behind_p50_ms": 1000 * median(found["behind"]),
        "behind_max_ms": 1000 * max(found["behind"]),
        "changes": found["changes"],
        "wrong": len(found["wrong"]),
    }
    report(shown, result)


if __name__ == "__main__":
    main()
