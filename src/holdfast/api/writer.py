"""``stream.writeStream``: Spark's own way to say where a stream goes, over ``Stream.write``.

What of Spark's builder belongs to a query belongs to the job here, which is one query whatever the number of its sinks:
``start`` adds the sink and starts nothing, and the trigger and the checkpoint are ``job.start``'s and the store's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from pyspark.sql import DataFrame

from holdfast.errors import PlanError
from holdfast.plan.epochs import Epoch

if TYPE_CHECKING:
    from holdfast.api.stream import Stream


class StreamWriter:
    """What ``DataStreamWriter`` is to a DataFrame. Its methods change it and return it, as Spark's do."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._format: str | None = None
        self._mode = "update"
        self._options: dict[str, object] = {}
        self._partition_by: list[str] = []
        self._name: str | None = None
        self._function: Callable[[DataFrame, Epoch], None] | None = None

    def format(self, source: str) -> StreamWriter:
        """One of Spark's formats; without one what ``spark.sql.sources.default`` says."""
        self._format = source
        return self

    def outputMode(self, outputMode: str) -> StreamWriter:  # noqa: N802, N803 - Spark's own names
        """ "update" (what it is without a word), "append" or "complete", as ``mode`` of ``write``."""
        self._mode = outputMode
        return self

    def option(self, key: str, value: object) -> StreamWriter:
        """An option of the format."""
        if key.lower() == "checkpointlocation":
            raise PlanError(
                "A sink has no checkpoint of its own.",
                safe="Nothing was started.",
                todo="Leave checkpointLocation out: the job's store has everything, hf.Job(…, store=…).",
            )
        self._options[key] = value
        return self

    def options(self, **options: object) -> StreamWriter:
        for key, value in options.items():
            self.option(key, value)
        return self

    def partitionBy(self, *cols: str | Sequence[str]) -> StreamWriter:  # noqa: N802
        self._partition_by = [name for col in cols for name in ([col] if isinstance(col, str) else col)]
        return self

    def queryName(self, queryName: str) -> StreamWriter:  # noqa: N802, N803
        """The sink's name, by which it knows its epochs again; of format "memory" also the view's."""
        self._name = queryName
        return self

    def foreachBatch(self, func: Callable[[DataFrame, Epoch], None]) -> StreamWriter:  # noqa: N802
        """``for_each_batch``: its second argument, the epoch, is the ``int`` that Spark's is."""
        self._function = func
        return self

    def start(
        self,
        path: str | None = None,
        format: str | None = None,
        outputMode: str | None = None,  # noqa: N803
        partitionBy: str | Sequence[str] | None = None,  # noqa: N803
        queryName: str | None = None,  # noqa: N803
        **options: object,
    ) -> Stream:
        """Add the sink to the job, which ``job.start`` starts; the stream, so that it can go elsewhere too."""
        self._take(format, outputMode, partitionBy, queryName, options)
        if self._function is not None:
            return self._stream.for_each_batch(self._function, mode=self._mode, name=self._name)
        return self._stream._written(
            self._chosen_format,
            self._mode,
            self._name,
            self._partition_by,
            self._options | ({"path": path} if path else {}),
        )

    def toTable(  # noqa: N802
        self,
        tableName: str,  # noqa: N803
        format: str | None = None,
        outputMode: str | None = None,  # noqa: N803
        partitionBy: str | Sequence[str] | None = None,  # noqa: N803
        queryName: str | None = None,  # noqa: N803
        **options: object,
    ) -> Stream:
        """Add a table of Spark's catalog as a sink: made with the first epoch if it is not there."""
        self._take(format, outputMode, partitionBy, queryName, options)
        if self._function is not None:
            raise PlanError("foreachBatch writes to no table.", todo="Use start() for it, or leave it out.")
        return self._stream._written(
            self._chosen_format, self._mode, self._name, self._partition_by, self._options, table=tableName
        )

    def trigger(self, **given: Any) -> NoReturn:
        said = ", ".join(f"{key!r}: {value!r}" for key, value in given.items())
        raise PlanError(
            "A trigger is the job's, whose sinks all get the same epochs.",
            safe="Nothing was started.",
            todo=f"job.start(trigger={{{said}}})",
        )

    def foreach(self, f: object) -> NoReturn:
        raise PlanError(
            "There is no foreach: a function called row by row in Spark's tasks cannot know what it has seen.",
            safe="Nothing was started.",
            todo="Use foreachBatch for a sink of your own, or key_by(…).process(…) for a function per key.",
        )

    def clusterBy(self, *cols: object) -> NoReturn:  # noqa: N802
        raise PlanError("Sinks are not clustered.", safe="Nothing was started.", todo="Use partitionBy.")

    @property
    def _chosen_format(self) -> str:
        return self._format or self._stream._job._default_format

    def _take(
        self,
        format: str | None,
        mode: str | None,
        partition_by: str | Sequence[str] | None,
        name: str | None,
        options: dict[str, object],
    ) -> None:
        """What ``start`` was given wins, as in Spark."""
        self.options(**options)
        if format is not None:
            self.format(format)
        if mode is not None:
            self.outputMode(mode)
        if partition_by is not None:
            self.partitionBy(partition_by)
        if name is not None:
            self.queryName(name)
