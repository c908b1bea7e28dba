"""Where traffic jams begin and end: the mean speed of every road segment over a sliding window, and alarms.

Traffic monitoring as SR3 has it. The windows are final when they come out, in the order of time, so the function over
them need only remember whether its segment was jammed: a boolean a segment.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from epochs import SECOND, START, session, stream, times
from pyspark.sql import DataFrame

import holdfast as hf

SIZE, EVERY, LATENESS = 180, 60, 20  # seconds
SLOW, VEHICLES = 25.0, 5
"""A jam: so slow in the mean (km/h), over so many vehicles at least."""


class Jams:
    """From windows to what happens: a jam begins, a jam ends."""

    jammed = hf.states.value("boolean", default=False)

    def rows(self, segment, rows, context):
        for row in sorted(rows, key=lambda row: row["window_end"]):
            jammed = row["speed"] < SLOW and row["vehicles"] >= VEHICLES
            if jammed != context.state.jammed:
                context.state.jammed = jammed
                event = "begins" if jammed else "ends"
                yield {"segment": segment, "ts": row["window_end"], "jam": event, "speed": row["speed"]}


def build(job: hf.Job, reports: DataFrame) -> hf.StageStream:
    speeds = (
        job.read(reports)
        .key_by("segment", name="speeds")
        .window(hf.sliding(f"{SIZE} s", every=f"{EVERY} s"), time="ts", lateness=f"{LATENESS} s")
        .agg(speed=hf.mean("speed"), vehicles=hf.count())
    )
    return speeds.key_by("segment", name="jams").process(Jams, "segment string, ts timestamp, jam string, speed double")


def generate(seed: int = 1, epochs: int = 8, reports: int = 1200) -> Iterator[pa.Table]:
    """Vehicles that report twice a minute or so; each segment has its hour of slow traffic. Some reports come late."""
    draw = np.random.default_rng(seed)
    segments = np.array([f"E39-{number}" for number in range(12)])
    worst = draw.integers(0, epochs * 120, len(segments))
    for epoch in range(epochs):
        at = np.sort(draw.integers(0, 120 * SECOND, reports)) + epoch * 120 * SECOND
        on = draw.integers(0, len(segments), reports)
        far = np.abs(at / SECOND - worst[on])
        speed = np.where(far < 200, draw.normal(18, 6, reports), draw.normal(70, 15, reports)).clip(0)
        at -= draw.integers(0, LATENESS * SECOND, reports)
        at -= np.where(draw.random(reports) < 0.01, draw.integers(0, 400 * SECOND, reports), 0)
        yield pa.table({"segment": segments[on], "speed": speed, "ts": times(START + at)})


def show(jams: DataFrame, epoch: int) -> None:
    for row in jams.orderBy("ts", "segment").collect():
        print(f"{row['ts']:%H:%M}  {row.segment:<7} jam {row.jam:<6} ({row.speed:.0f} km/h)")


def main() -> None:
    spark = session()
    with tempfile.TemporaryDirectory() as folder:
        job = hf.Job("traffic", spark, store=f"{folder}/state")
        build(job, stream(spark, f"{folder}/reports", generate())).for_each_batch(show)
        with job.start(trigger={"availableNow": True}) as run:
            run.await_termination()
            print(run.status().stages[0])


if __name__ == "__main__":
    main()
