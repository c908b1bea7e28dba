"""``spark.read.format("holdfast")``: the live state of a running job as a DataFrame; with the option ``stream``, and
with ``spark.readStream``, the blocks of a named stream (``named_source``), whether the job that writes it runs or not.

The job is found by its store: the newest ``owner`` file has the master's address. The token is in a file of the user's,
since an option would be in Spark's plans and logs. All partitions read the epoch that was committed when the query was
planned, held for them by a lease that they renew as long as they read, and say which one in ``_epoch``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import LongType, StructType

from holdfast.errors import PlanError, StoreError
from holdfast.invariants import Impossible
from holdfast.log.ledger import Ledger
from holdfast.log.records import JobFile
from holdfast.log.store import Store
from holdfast.spark.named_source import BlockStream, KeptBlocks, Wanted, layout_of, schema_of
from holdfast.spark.scan import Scan, in_ranges
from holdfast.wire import tokens
from holdfast.wire.client import Client, Unreachable
from holdfast.wire.locations import MASTER
from holdfast.wire.messages import Address
from holdfast.wire.questions import Describe, Described

EPOCH_COLUMN = "_epoch"


class HoldfastDataSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "holdfast"

    def schema(self) -> StructType:
        if (wanted := self._stream()) is not None:
            return schema_of(layout_of(wanted))
        _, _, found = self._describe()
        return StructType.fromJson(json.loads(found.schema)).add(EPOCH_COLUMN, LongType())

    def reader(self, schema: StructType) -> DataSourceReader:
        if (wanted := self._stream()) is not None:
            return KeptBlocks(wanted, schema)
        master, token, found = self._describe(lease=True)
        return _Reader(master, token, found, self._option("stage"))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        wanted = self._stream()
        if wanted is None:
            raise PlanError(
                "A streaming query reads a named stream of a job, and the option 'stream' does not say which.",
                safe="Nothing was started.",
                todo="Name it: .option('stream', …). The state of a stage is read by spark.read, .option('stage', …).",
            )
        return BlockStream(wanted, schema)

    def _stream(self) -> Wanted | None:
        name = self.options.get("stream")
        return Wanted.of(self.options, self._option("store"), str(name)) if name else None

    def _option(self, name: str) -> str:
        value = self.options.get(name)
        if not value:
            raise PlanError(f"format('holdfast') needs the option '{name}'.", todo=f".option('{name}', …)")
        return str(value)

    def _describe(self, lease: bool = False) -> tuple[Address, str, Described]:
        ledger = Ledger(Store(self._option("store")))
        owner = ledger.newest_owner()
        if owner is None:
            raise StoreError(f"No job has ever run on the store {ledger.store.uri}.", todo="Start it first.")
        file = JobFile.from_bytes(ledger.store.read(JobFile.file), JobFile.file)
        token = tokens.find(file.job_id, owner.incarnation)
        master = Address(MASTER, owner.address)
        try:
            with Client(master, token) as client:
                answer = client.call(Describe(self._option("stage"), lease), 30.0)
        except Unreachable as error:
            raise StoreError(
                f"The job of {ledger.store.uri} is not running: its master at {owner.address} does not answer.",
                safe="The state is safe in the store.",
                todo="Start the job, then read again.",
            ) from error
        return master, token, answer


@dataclass
class _Part(InputPartition):
    number: int


class _Reader(DataSourceReader):
    def __init__(self, master: Address, token: str, found: Described, stage: str) -> None:
        self._scan = Scan(
            master,
            token,
            found.job,
            found.incarnation,
            stage,
            0,
            found.epoch,
            "read",
            in_ranges(found.groups),
            reader=found.reader,
        )

    def partitions(self) -> Sequence[InputPartition]:
        return [_Part(number) for number in range(len(self._scan.parts))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, _Part):
            raise Impossible(f"{partition!r} is no _Part")
        for batch in self._scan.part(partition.number):
            epochs = pa.array([self._scan.epoch] * batch.num_rows, pa.int64())
            yield pa.RecordBatch.from_arrays([*batch.columns, epochs], names=[*batch.schema.names, EPOCH_COLUMN])
