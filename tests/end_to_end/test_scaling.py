"""A job that chooses its number of containers itself: by how busy its epochs are, or by how many executors it has."""

from __future__ import annotations

from pathlib import Path

import pytest
from kit import NEVER, Drill, EpochsGoOn, Stage, Watch, finish, until
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.log.ledger import Ledger
from holdfast.log.store import Store
from tools.cluster import Cluster

pytestmark = pytest.mark.spark


def test_busy_epochs_bring_containers(stage: Stage) -> None:
    """Every epoch takes more than a hundredth of its interval, so the policy grows as far as it may, and stays."""
    policy = {"most": 3, "target": 0.01, "up_after": 1, "cool_down": 0.0}

    def during(going: EpochsGoOn) -> None:
        until(lambda: len(going.slices()) == 3, NEVER, "there are three containers")
        going.settle()
        going.epochs(2)
        advice = going.run.status().scaling
        assert advice is not None
        assert advice.containers == 3
        assert "the most allowed" in advice.reason

    drill = stage.play(during, containers=1, pace="200 milliseconds", autoscale=policy)
    told = [text for kind, text in drill.report["events"] if kind == "autoscale"]
    assert told
    assert all("of the interval" in text for text in told)
    assert "lost" not in drill.kinds


def test_advice_is_not_followed_unless_wished_for(stage: Stage) -> None:
    def during(going: EpochsGoOn) -> None:
        advice = going.run.status().scaling
        assert advice is not None
        assert "of the interval" in advice.reason
        assert len(going.slices()) == 1

    drill = stage.play(during, containers=1, pace="200 milliseconds")
    assert not {"autoscale", "rescaled"} & set(drill.kinds)


def test_executors_are_needed_to_follow_them(tmp_path: Path, spark: SparkSession) -> None:
    job = hf.Job("alone", spark, store=str(tmp_path / "store"))
    stream = job.read(spark.readStream.format("rate").load())
    stream.key_by("value").agg(n=hf.count()).write("parquet", str(tmp_path / "out"))
    with pytest.raises(hf.PlanError, match="needs executors") as refused:
        job.start(autoscale=hf.PerExecutor())
    assert "hf.Autoscale" in refused.value.todo
    assert not (tmp_path / "store").exists()


@pytest.mark.heavy
def test_new_executors_get_containers_and_lost_ones_lose_them(tmp_path: Path) -> None:
    """A worker comes, then one goes; the epochs go on, and no row is lost or doubled."""
    over = tmp_path / "over"
    with Cluster(workers=1, cores=1, memory="600m") as cluster:
        drill = Drill(
            tmp_path / "drill",
            files=2,
            rows=600,
            keys=300,
            config={
                "flows": True,
                "where": "executors",
                "spark": cluster.settings,
                "master": cluster.url,
                "containers": 1,
                "per_executor": {"settle": 1.0},
                "wait": {"until": str(over)},
            },
        )
        committed = Watch(drill)
        ledger = Ledger(Store(str(drill.base / "store")), "main")

        def owners() -> int:
            routing = ledger.last_routing()
            return len(set(routing.owners)) if routing else 0

        driver = drill.start()
        try:
            with drill.flowing(committed):
                committed.go_on(2)
                assert owners() == 1
                cluster.add_worker()
                until(lambda: owners() == 2, NEVER, "the new executor has a container, with slices")
                committed.go_on(1)
                cluster.kill_worker(0)
                until(lambda: owners() == 1, NEVER, "the lost executor has no container, and nobody crowds the other")
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
    assert drill.kinds.count("autoscale") >= 1
