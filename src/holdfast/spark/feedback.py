"""The sinks whose rows the next epoch has: of ``stream.feedback``, whose few rows come to the driver, and of loops."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import DataFrame

from holdfast.invariants import Impossible
from holdfast.spark.tables import Wants
from holdfast.state.feedback import MOST_ROWS, packed, too_large


class FeedbackSink:
    """Keeps the rows of the last epoch that it was given, until they are committed. A driver that dies before that has
    given nothing to anybody, and the next one collects them again."""

    exactly_once = True
    forgets = False

    def __init__(self, name: str, feeds: str, wants: Wants) -> None:
        self.name, self.feeds, self.wants = name, feeds, wants
        self.rows = b""

    def write(self, df: DataFrame, epoch: int, counter: int) -> None:
        rows: pa.Table = df.limit(MOST_ROWS + 1).toArrow()
        if rows.num_rows > MOST_ROWS:
            raise too_large(self.feeds, epoch, f"more than {MOST_ROWS:,} rows")
        self.rows = packed(self.feeds, epoch, rows)

    def close(self) -> None:
        return


class LoopSink:
    """In the place of what closes a loop: its rows are taken in as a stage's are (``EpochJobs``), and never written."""

    exactly_once = True
    forgets = False
    wants: Wants = "changed"

    def __init__(self, name: str) -> None:
        self.name = name

    def write(self, df: DataFrame, epoch: int, counter: int) -> None:
        raise Impossible(f"{self.name} is written")

    def close(self) -> None:
        return
