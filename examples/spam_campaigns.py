"""Spam campaigns, found and followed: filters are changed and zoomed in on while the stream runs.

ELF's fourth application. Mails come with the template that they were made from, as far as a classifier can tell. One
job counts the mails of each template and ranks them; whoever is on duty sees one stand out, adds a job that looks at it
by sender and country, narrows its filter as more is known, and keeps it out of the ranking. No row is read twice for
that, and nothing stops.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from epochs import session
from pyspark.sql import DataFrame

import holdfast as hf

SCHEMA = "template string, sender string, country string, bytes bigint"
CAMPAIGN = "template 7"


def draw(hub: hf.Hub, mails: DataFrame) -> None:
    hub.read(mails, name="mails")
    job = hub.job("templates", creator="mail team")
    counted = job.stream("mails").where("bytes > 0").key_by("template", name="counts").agg(mails=hf.count())
    counted.top_k(3, by="mails", name="largest")


def zoom(hub: hf.Hub, template: str) -> hf.HubJob:
    """A job for whoever follows one campaign; as text, so that the next start of the hub draws it again."""
    job = hub.job("campaign", creator="on duty")
    job.sql(
        f"SELECT sender, country, count(*) AS mails, sum(bytes) AS bytes FROM mails WHERE template = '{template}' "
        "GROUP BY sender, country",
        name="senders",
    )
    return job


def generate(seed: int = 1, epochs: int = 8, mails: int = 4000) -> Iterator[pa.Table]:
    """Ordinary mail, and from the third epoch on a campaign of a few senders."""
    random = np.random.default_rng(seed)
    for epoch in range(epochs):
        spam = (random.random(mails) < 0.3) & (epoch > 1)
        template = np.where(spam, CAMPAIGN, [f"template {number}" for number in random.integers(0, 50, mails)])
        senders = np.where(spam, random.integers(0, 8, mails), random.integers(8, 3000, mails))
        yield pa.table(
            {
                "template": template,
                "sender": [f"host {number}" for number in senders],
                "country": random.choice(["NZ", "FR", "BR", "IN"], mails, p=[0.1, 0.2, 0.3, 0.4]),
                "bytes": random.integers(0, 50_000, mails),
            }
        )


def follow(run: hf.HubRun, hub: hf.Hub, folder: Path, tables: Iterator[pa.Table]) -> dict[str, hf.Update]:
    """What somebody on duty does, epoch by epoch."""
    made: dict[str, hf.Update] = {}
    for number, table in enumerate(tables):
        pq.write_table(table, folder / f".{number:04d}")
        (folder / f".{number:04d}").rename(folder / f"{number:04d}.parquet")
        run.process_all_available()
        match number:
            case 2:
                made["added"] = run.add(zoom(hub, CAMPAIGN))
            case 4:
                narrow = f"template = '{CAMPAIGN}' AND country IN ('BR', 'IN')"
                made["narrowed"] = run.update("campaign/senders", where=narrow)
            case 5:
                made["cleaned"] = run.update("templates/counts", where=f"bytes > 0 AND template <> '{CAMPAIGN}'")
    return made


def main() -> None:
    spark = session()
    with tempfile.TemporaryDirectory() as base:
        folder = Path(base, "mails")
        folder.mkdir()
        hub = hf.Hub("spam", spark, store=f"{base}/state")
        draw(hub, spark.readStream.schema(SCHEMA).parquet(str(folder)))
        with hub.start() as run:
            follow(run, hub, folder, generate())
            for change in run.history():
                print(f"version {change.version}: {change.text}")
            print(*run.sql("SELECT * FROM `templates/largest` ORDER BY rank"), sep="\n")
            print(*run.sql("SELECT * FROM `campaign/senders` ORDER BY mails DESC LIMIT 3"), sep="\n")
            print(*run.jobs, sep="\n")


if __name__ == "__main__":
    main()
