"""A load of a fixed rate: ready-made Parquet files that appear in a folder on time, whatever the query does.

A source that slows down when the query does would hide every gap. So the files are written before, and a thread only
links and renames them into the folder that the query watches: several a second, at times fixed in advance.
"""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from types import TracebackType

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

FILES_PER_SECOND = 8
POOL = 16  # different files that a load repeats


class Files:
    """The files that a query gets to see. ``hot`` is the part of the keys that any row after the first ones has."""

    def __init__(self, folder: Path, keys: int, hot: float = 1.0) -> None:
        self.watched = folder / "input"
        self.keys = keys
        self.hot = hot
        self.rows = 0  # given to the query so far
        self._ready = folder / "ready"
        self._random = np.random.default_rng(2024)
        self._names = 0
        self.watched.mkdir()
        self._ready.mkdir()

    def every_key_once(self, rows: int = 1_000_000) -> list[Path]:
        """Files that together have every key once, in no order."""
        keys = self._random.permutation(self.keys)
        return [self._write(part) for part in np.array_split(keys, max(1, -(-self.keys // rows)))]

    def random(self, rows: int, files: int) -> list[Path]:
        """Files of uniformly drawn keys: of all, or of the hot ones, which are every tenth key, say, of every slice."""
        step = round(1 / self.hot)
        return [self._write(self._random.integers(0, max(1, self.keys // step), rows) * step) for _ in range(files)]

    def _write(self, keys: np.ndarray) -> Path:
        file = self._ready / f"{self._new_name()}.parquet"
        pq.write_table(pa.table({"k": keys, "v": self._random.integers(0, 1000, len(keys))}), file)
        return file

    def give(self, file: Path) -> None:
        """A file appears to the query, whole, under a new name."""
        linked = self._ready / f"{self._new_name()}.parquet"
        os.link(file, linked)
        linked.rename(self.watched / linked.name)
        self.rows += pq.read_metadata(file).num_rows

    def _new_name(self) -> str:
        self._names += 1
        return f"part-{self._names:06d}"


class Feed:
    """Gives ``rate`` rows a second while the context is open. Late files are made up for, so the rate holds."""

    def __init__(self, files: Files, rate: float) -> None:
        self.rate = rate
        self._files = files
        self._pool = files.random(max(1, round(rate / FILES_PER_SECOND)), POOL)
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._feed, daemon=True, name="feed")
        self._failure: BaseException | None = None

    def _feed(self) -> None:
        start, given = time.monotonic(), 0
        try:
            while not self._end.wait(max(0.0, start + given / FILES_PER_SECOND - time.monotonic())):
                self._files.give(self._pool[given % POOL])
                given += 1
        except BaseException as failure:
            self._failure = failure

    def __enter__(self) -> Feed:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        self._thread.join()
        if self._failure is not None and error is None:
            raise self._failure


def commit_times(folder: Path) -> dict[int, float]:
    """When each epoch (or batch of Spark) was committed: its file is written once, so its time is the commit's."""
    found = {}
    for file in os.scandir(folder):
        if file.name.isdecimal():
            try:
                found[int(file.name)] = file.stat().st_mtime
            except FileNotFoundError:  # of an epoch so old that its commit was just deleted
                continue
    return dict(sorted(found.items()))


def distances(times: Sequence[float]) -> list[float]:
    return [after - before for before, after in pairwise(times)]


def between(times: Sequence[float], start: float, end: float) -> list[float]:
    """The commits of a span of time with one more on either side: a gap may begin before it, and end after it."""
    inner = [number for number, at in enumerate(times) if start <= at <= end]
    if not inner:
        before = sum(at < start for at in times)
        return list(times[max(0, before - 1) : before + 1])
    return list(times[max(0, inner[0] - 1) : inner[-1] + 2])


def longest_gap(times: Sequence[float], start: float, end: float) -> float:
    found = distances(between(times, start, end))
    if not found:
        raise SystemExit(f"No two commits around the {end - start:.1f} s that were watched.")
    return max(found)


def undisturbed(times: Sequence[float], start: float, end: float) -> float:
    """The median distance of the commits within a span of time."""
    found = distances([at for at in times if start <= at <= end])
    if len(found) < 2:
        raise SystemExit(f"Only {len(found) + 1} commits in {end - start:.1f} s: too few for a median.")
    return statistics.median(found)
