"""What the doors of a run cost: Unix sockets and TLS against plain TCP, on a scan of 1 GiB, on small calls, on epochs.

Scan, calls and connections: our own server, in a process of its own, and our own client. Epochs: 1,000 rows a second
and 10,000 keys, as in ``./dev bench latency``; each turn is a process of its own, the first epochs of which do not
count. Ratios are of seconds, above 1: slower than plain TCP.
"""

from __future__ import annotations

import argparse
import json

import latency
import numpy as np
from common import measure_apart, parser, report, scratch, session, table
from kit.doors import BATCH_BYTES, PLAIN, TLS, UNIX, costs, in_turns, ratios
from pyspark.sql import SparkSession


def epochs(spark: SparkSession, way: str, options: argparse.Namespace) -> list[int]:
    import holdfast as hf

    doors: dict[str, object] = {
        UNIX: {},
        TLS: {"listen": "127.0.0.1"},
        PLAIN: {"listen": "127.0.0.1", "security": hf.Plain()},
    }
    with scratch() as folder:
        job = hf.Job("door", spark, store=str(folder / "store"))
        counted = job.read(latency.source(spark)).key_by("k").agg(n=hf.count(), total=hf.sum("v"))
        counted.write("noop", mode="update")
        with job.start(containers=2, trigger={"processingTime": latency.TRIGGER}, **doors[way]) as run:  # type: ignore[arg-type]
            assert run.status().security == way
            assert run.query is not None
            return latency.watch(run.query, options, options.seconds)


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--mib", type=int, default=1024, help="of a scan")
    made.add_argument("--calls", type=int, default=2000, help="small calls of a turn")
    made.add_argument("--turns", type=int, default=7, help="of scans and calls")
    made.add_argument("--seconds", type=int, default=20, help="of epochs, each turn")
    made.add_argument("--epoch-turns", type=int, default=2, help="of epochs; 0: none")
    made.add_argument("--warm-up", type=int, default=8, help="epochs of a turn that do not count")
    options = made.parse_args()
    if options.quick:
        options.mib, options.calls, options.turns, options.epoch_turns = 256, 300, 3, 0
    if options.contestant:
        with session(options.memory) as spark:
            print(json.dumps({"milliseconds": epochs(spark, options.contestant, options)}))
        return

    found = costs(options.mib, options.calls, options.turns)
    shown = table("against plain TCP, medians", "", PLAIN, UNIX, TLS)
    result: dict[str, object] = {"scan_gib": options.mib * BATCH_BYTES / (1 << 30)}

    def row(what: str, values: dict[str, list[float]], unit: float, word: str) -> None:
        compared = ratios(values)
        shown.add_row(
            what,
            f"{np.median(values[PLAIN]) * unit:.3f} {word}",
            *(f"{np.median(values[way]) * unit:.3f} {word}, {compared[way]:.2f}×" for way in (UNIX, TLS)),
        )
        key = what.split()[0]
        result[f"{key}_tcp"] = float(np.median(values[PLAIN])) * unit
        result.update({f"{key}_unix_ratio": compared[UNIX], f"{key}_tls_ratio": compared[TLS]})

    row("scan", found["scan"], 1, "s")
    row("call", found["call"], 1e6, "µs")
    row("connection and a call", found["connection"], 1e3, "ms")
    if options.epoch_turns:
        measured = in_turns(lambda way: measure_apart(way)["milliseconds"], options.epoch_turns)
        row("epoch", {way: [float(np.median(turn)) for turn in turns] for way, turns in measured.items()}, 1, "ms")
    report(shown, result)


if __name__ == "__main__":
    main()
