"""With a local master nothing of ours listens on the network: counted, while rows are taken in, pushed and read."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import psutil
import pytest
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import SparkSession
from test_reading import job_over

import holdfast as hf

pytestmark = pytest.mark.spark
LISTENS = "0A"


def listening(processes: list[psutil.Process]) -> set[str]:
    """The TCP sockets, of any address, on which these processes listen: who they are, and where."""
    inodes = {}
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == LISTENS:
                inodes[f"socket:[{words[9]}]"] = words[1]
    found = set()
    for process in processes:
        with contextlib.suppress(FileNotFoundError, psutil.Error):  # it ends meanwhile
            for file in os.listdir(f"/proc/{process.pid}/fd"):
                with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                    held = os.readlink(f"/proc/{process.pid}/fd/{file}")
                    if held in inodes:
                        found.add(f"{process.pid} {' '.join(process.cmdline()[:4])} at {inodes[held]}")
    return found


def ours() -> list[psutil.Process]:
    """This driver, its containers and Spark's Python workers: all but the JVM and the daemon of workers, Spark's own,
    which have doors of their own."""
    me = psutil.Process()
    found = []
    for process in me.children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it ends meanwhile
            words = process.cmdline()
            above = process.parent()
            is_daemon = "pyspark.daemon" in words and above is not None and "pyspark.daemon" not in above.cmdline()
            if words and "java" not in Path(words[0]).name and not is_daemon:
                found.append(process)
    return [me, *found]


def test_a_local_run_listens_on_no_port(tmp_path: Path, spark: SparkSession) -> None:
    ensure_callback_server_started(spark.sparkContext._gateway)  # Spark's own, with the first foreachBatch
    before = listening([psutil.Process()])
    assert before, "PySpark has a door, which shows that doors are found"
    job, kept = job_over(spark, tmp_path, 3)
    with job.start(slices=8, containers=2, push=True, ring=True, trigger={"availableNow": True}) as run:
        run.await_termination()
        assert run.state(kept).to_arrow().num_rows == run.state(kept).to_df().count() > 0
        elsewhere = spark.read.format("holdfast").option("store", str(tmp_path / "store")).option("stage", kept.name)
        assert elsewhere.load().count() > 0
        status = run.status()
        assert {one.pid for one in status.containers} <= {process.pid for process in ours()}
        assert listening(ours()) == before
        folder = Path(run._live.desk.address.location.removeprefix("grpc+unix://")).parent
        assert folder.stat().st_mode & 0o777 == 0o700
        assert {path.name for path in folder.iterdir()} == {"master", *(one.name for one in status.containers)}
        assert status.security == "Unix sockets"
        assert "over Unix sockets" in str(status)
        assert {one.host for one in status.containers} == {"127.0.0.1"}
    assert not folder.exists()


@pytest.mark.parametrize(("security", "says"), [(None, "TLS"), (hf.Plain(), "plain TCP")])
def test_a_port_that_is_asked_for_is_there(
    security: hf.Plain | None, says: str, tmp_path: Path, spark: SparkSession
) -> None:
    """Containers, tasks that push and read, and readers by the store find each other there as well."""
    job, kept = job_over(spark, tmp_path, 2)
    with job.start(
        slices=8,
        containers=2,
        push=True,
        ring=True,
        listen="127.0.0.1",
        security=security,
        trigger={"availableNow": True},
    ) as run:
        run.await_termination()
        assert run.state(kept).to_arrow().num_rows == run.state(kept).to_df().count() > 0
        elsewhere = spark.read.format("holdfast").option("store", str(tmp_path / "store")).option("stage", kept.name)
        assert elsewhere.load().count() > 0
        status = run.status()
        assert status.security == says
        for one in status.containers:
            assert len(listening([psutil.Process(one.pid)])) == 1
        assert status.copies == "8 of 8 copies"
