"""On a real standalone cluster: tasks run on two hosts, and slow ones are run twice."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest
from kit import Drill

pytestmark = pytest.mark.spark

HOME = Path(pyspark.__file__).parent


def listening(host: str, port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((host, port)) == 0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[str]:
    """A master and two workers, which believe to be on two hosts; ended by their own process ids."""
    port = free_port()
    environment = {
        **os.environ,
        "SPARK_HOME": str(HOME),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_NO_DAEMONIZE": "1",
        "SPARK_DAEMON_MEMORY": "256m",
    }
    deploy = "org.apache.spark.deploy"
    launch = [str(HOME / "bin" / "spark-class")]
    commands = [[*launch, f"{deploy}.master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"]]
    for host in ("127.0.0.1", "127.0.0.2"):
        work = ["--cores", "1", "--memory", "600m", "--webui-port", "0", "--work-dir", str(tmp_path / host)]
        commands.append([*launch, f"{deploy}.worker.Worker", "--host", host, *work, f"spark://127.0.0.1:{port}"])
    processes = []
    try:
        for command in commands:
            log = (tmp_path / f"daemon-{len(processes)}.log").open("w")
            processes.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
            log.close()
            deadline = time.monotonic() + 60
            while not listening("127.0.0.1", port):
                assert time.monotonic() < deadline, "the cluster's master did not come up"
                time.sleep(0.1)
        yield f"spark://127.0.0.1:{port}"
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(30)


def test_speculation(tmp_path: Path, cluster: str) -> None:
    """Both attempts of a slow task write a segment; one is named in prepare, the other is garbage."""
    drill = Drill(tmp_path, files=2, config={"slow": str(tmp_path / "faults"), "master": cluster})
    drill.plant("dawdle")
    ended = drill.run(
        spark={
            "spark.executor.memory": "512m",
            "spark.task.cpus": "0.95",
            "spark.speculation": "true",
            "spark.speculation.interval": "200ms",
            "spark.speculation.multiplier": "1.5",
            "spark.speculation.quantile": "0.5",
            "spark.speculation.minTaskRuntime": "1s",
        }
    )
    assert ended.code == 0, ended.error[-3000:]
    assert drill.planted == []
    drill.check()
