"""On a real standalone cluster: tasks run on two hosts, and slow ones are run twice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kit import Drill

from tools.cluster import TASK_CPUS, Cluster

pytestmark = pytest.mark.spark


@pytest.fixture
def cluster() -> Iterator[str]:
    """A master and two workers, which believe to be on two hosts."""
    with Cluster(workers=2, cores=1, memory="600m") as made:
        yield made.url


@pytest.mark.heavy
def test_speculation(tmp_path: Path, cluster: str) -> None:
    """Both attempts of a slow task write a segment; one is named in prepare, the other is garbage. The slow one waits
    for minutes, so what ends before is the work of the second."""
    drill = Drill(tmp_path, files=2, config={"slow": str(tmp_path / "faults"), "master": cluster})
    drill.plant("dawdle")
    ended = drill.run(
        spark={
            "spark.executor.memory": "512m",
            "spark.task.cpus": TASK_CPUS,
            "spark.speculation": "true",
            "spark.speculation.interval": "200ms",
            "spark.speculation.multiplier": "1.5",
            "spark.speculation.quantile": "0.5",
            "spark.speculation.minTaskRuntime": "1s",
        }
    )
    assert ended.code == 0, ended.error[-3000:]
    assert drill.planted == ["again"], "the task was slow, and was run twice"
    drill.check()
