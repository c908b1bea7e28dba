"""On a standalone cluster, containers on its executors: kill executors, a worker and the driver while slices move.

All processes die by ``kill -9`` from outside; the driver itself scales and moves all the time. State and sinks still
equal what a batch query over the same files says.
"""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path

import pytest
from kit import Drill, Watch, finish

from tools.cluster import Cluster

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.drivers]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One round, unless somebody asks for more than the usual two: ``--rounds N --first-seed S``."""
    rounds, first = metafunc.config.getoption("--rounds"), metafunc.config.getoption("--first-seed")
    if "cluster_seed" in metafunc.fixturenames:
        metafunc.parametrize("cluster_seed", range(first, first + (1 if rounds <= 2 else rounds)))


def test_executors_and_a_worker_killed(tmp_path: Path, cluster_seed: int) -> None:
    strike(tmp_path, cluster_seed, ["executor", "worker"])


@pytest.mark.heavy
def test_executors_worker_and_driver_killed(tmp_path: Path, cluster_seed: int) -> None:
    """Deaths of drivers that have their containers beside them are in ``test_exactly_once``, of every place."""
    strike(tmp_path, cluster_seed, ["executor", "worker", "driver"])


def strike(tmp_path: Path, cluster_seed: int, deeds: list[str]) -> None:
    print(f"seed {cluster_seed}")
    draw = random.Random(cluster_seed)
    over = tmp_path / "over"
    with Cluster(workers=2, cores=1, memory="600m") as cluster:
        drill = Drill(
            tmp_path / "drill",
            files=2,
            rows=600,
            keys=300,
            seed=cluster_seed,
            config={
                "flows": True,
                "where": "executors",
                "spark": cluster.settings,
                "master": cluster.url,
                "shape": draw.choice(["one", "two"]),
                "backups": draw.randint(0, 2),
                "store_every": draw.randint(2, 6),
                "unrest": {"seed": cluster_seed, "until": str(over)},
            },
        )
        committed = Watch(drill)
        draw.shuffle(deeds)
        driver = drill.start()
        try:
            with drill.flowing(committed):
                for deed in deeds:
                    committed.go_on(draw.randint(1, 3))
                    print(f"epoch {committed()}: kill -9 of {deed}")
                    match deed:
                        case "executor":
                            os.kill(draw.choice(cluster.executors()), signal.SIGKILL)
                        case "worker":
                            cluster.kill_worker(len(cluster.workers) - 1)
                            cluster.add_worker()
                        case "driver":
                            driver.kill()
                            assert finish(driver).killed
                            driver = drill.start()
                committed.go_on(2)
            over.touch()
            ended = finish(driver)
            assert ended.code == 0, ended.error[-3000:]
        except BaseException:
            driver.kill()
            print(driver.stderr.read() if driver.stderr and not driver.stderr.closed else "")
            driver.wait()
            raise
    drill.check()
