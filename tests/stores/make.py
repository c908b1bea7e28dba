"""A store of this version and this Spark, its driver killed in the middle of epoch 8: ``python FILE FOLDER`` writes
``FOLDER/store.tar.xz``. ``test_older_stores.py`` and ``test_across_sparks.py`` go on with what is kept here.
"""

from __future__ import annotations

import os
import sys
import tarfile
from multiprocessing import get_context
from pathlib import Path

for _folder in ("end_to_end", "."):
    sys.path.insert(0, str(Path(__file__).parents[1] / _folder))


def make(folder: Path) -> None:
    (folder / "faults").mkdir(parents=True)
    (folder / "faults" / "driver@after-prepare@8").touch()
    os.environ["HOLDFAST_FAULTS"] = str(folder / "faults")
    child = get_context("spawn").Process(target=run_until_killed, args=(str(folder / "store"),))
    child.start()
    child.join()
    assert child.exitcode == -9, "it was to be killed after prepare 8"
    with tarfile.open(folder / "store.tar.xz", "w:xz") as archive:
        archive.add(folder / "store", "store")


def run_until_killed(store: str) -> None:
    from driver import session
    from test_older_stores import draw

    import holdfast as hf

    job, _ = draw(session({"master": "local[2]"}), store)
    job.start(containers=2, slices=4, safety=hf.Delta(store_every=3)).await_termination()


if __name__ == "__main__":
    make(Path(sys.argv[1]))
