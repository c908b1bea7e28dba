"""Two jobs with equal stages, of which one is updated, in a process of its own: what dies is a real driver."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import driver
from pyspark.sql import SparkSession

import holdfast as hf

FILTER = "v % 2 = 0"


def draw(base: Path, spark: SparkSession) -> hf.Hub:
    """``two`` has a stage and a sink over what it shares with ``one``."""
    hub = hf.Hub("shop", spark, store=base / "store")
    hub.read(driver.source(spark, str(base / "input")), name="rows")
    for name in ("one", "two"):
        sums = hub.job(name).stream("rows").key_by("k", name="sums").agg(n=hf.count(), total=hf.sum("v"))
        sums.write("parquet", str(base / name))
        if name == "two":
            sums.key_by("n", name="sizes").agg(keys=hf.count(), total=hf.sum("total"))
    return hub


def main(base: Path, *, update: bool) -> None:
    spark = driver.session({"master": "local[2]"})
    spark.sparkContext.setLogLevel("OFF")
    with draw(base, spark).start(containers=2, slices=4) as run:
        run.process_all_available()
        if update:
            run.update("two/sums", where=FILTER)
        for file in sorted((base / "all").iterdir()):
            file.rename(base / "input" / file.name)
            run.process_all_available()
        names = ("one/sums", "two/sums", "two/sizes")
        states = {name: run.state(name).to_arrow().to_pylist() for name in names}
    (base / "state.json").write_text(json.dumps(states))


if __name__ == "__main__":
    main(Path(sys.argv[1]), update=sys.argv[2] == "update")
