"""Sinks of tables and topics: whatever Spark can write in a batch.

None of these can take an epoch at once or not at all and say so, but for Delta; so their rows carry whose they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from pyspark.sql import DataFrame

from holdfast.spark import stamps

Wants = Literal["changed", "all"]


class TableSink:
    """Any batch writer of Spark. It cannot know that it has seen an epoch, so after a crash it gets it
    again.
    """

    exactly_once = False
    forgets = True

    def __init__(
        self,
        name: str,
        format: str,
        options: Mapping[str, str],
        partition_by: Sequence[str],
        wants: Wants,
        job: str,
        stamp: bool,
        table: str = "",
    ) -> None:
        self.name = name
        self.wants = wants
        self._table = table
        self._format = format
        self._options = dict(options)
        self._partition_by = list(partition_by)
        self._mode = "overwrite" if wants == "all" else "append"
        self._job = job
        self.stamp = stamp

    @property
    def replaces(self) -> bool:
        """Whether each epoch makes the table anew, with the columns that its rows have."""
        return self._mode == "overwrite" and (option(self._options, "truncate") or "false").lower() != "true"

    def write(self, df: DataFrame, epoch: int, counter: int) -> None:
        rows = self._stamped(df, epoch) if self.stamp else df
        writer = rows.write.format(self._format).options(**self._epoch_options(epoch)).mode(self._mode)
        if self._partition_by:
            writer = writer.partitionBy(*self._partition_by)
        writer.saveAsTable(self._table) if self._table else writer.save()

    def close(self) -> None:
        return

    def _epoch_options(self, epoch: int) -> dict[str, str]:
        return self._options

    def _stamped(self, df: DataFrame, epoch: int) -> DataFrame:
        return stamps.stamped(df, self._job, self.name, epoch)


class KafkaSink(TableSink):
    """A topic. It has no replacing, only further messages."""

    def __init__(self, name: str, options: Mapping[str, str], wants: Wants, job: str, stamp: bool) -> None:
        super().__init__(name, "kafka", options, (), wants, job, stamp)
        self._mode = "append"

    def _stamped(self, df: DataFrame, epoch: int) -> DataFrame:
        return stamps.with_headers(df, self._job, self.name, epoch)


class DeltaSink(TableSink):
    """A Delta table: it skips a transaction version that it has already committed for the same application."""

    exactly_once = True
    forgets = False

    def __init__(
        self,
        name: str,
        options: Mapping[str, str],
        partition_by: Sequence[str],
        wants: Wants,
        job: str,
        stamp: bool,
        identity: str,
    ) -> None:
        super().__init__(name, "delta", options, partition_by, wants, job, stamp)
        self._identity = identity

    def _epoch_options(self, epoch: int) -> dict[str, str]:
        return {**self._options, "txnAppId": self._identity, "txnVersion": str(epoch)}


def option(options: Mapping[str, str], name: str) -> str | None:
    """Spark's options do not mind upper and lower case."""
    return next((value for key, value in options.items() if key.lower() == name.lower()), None)
