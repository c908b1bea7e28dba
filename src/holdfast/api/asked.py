"""What other processes ask a run, by the driver's desk."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from holdfast.wire.handlers import handler
from holdfast.wire.questions import Answered, AskSql

if TYPE_CHECKING:
    from holdfast.api.run import Run


class RunQuestions:
    def __init__(self, run: Run) -> None:
        self._run = run

    @handler
    def sql(self, call: AskSql) -> Answered:
        rows = self._run._asked(call.job, call.text)
        sink = pa.BufferOutputStream()
        table = rows.to_arrow()
        with pa.ipc.new_stream(sink, table.schema) as out:
            out.write_table(table)
        return Answered(rows.epoch, sink.getvalue().to_pybytes())
