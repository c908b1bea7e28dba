"""The command ``holdfast``: a Python shell with Spark and Holdfast ready, and SQL."""

from __future__ import annotations

import argparse
import code
import os
import sys
from collections.abc import Callable, Sequence

from holdfast.errors import HoldfastError
from holdfast.java import find_java


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="holdfast", description="State that stays, for PySpark streams.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("shell", help="Python with spark and hf ready")
    sql = commands.add_parser("sql", help="run a script of SQL as a job, or ask a running one")
    sql.add_argument("file", nargs="?", help="the script; without one, a prompt over the running job of --store")
    sql.add_argument("--store", help="the job's folder (with a script: where its state is kept)")
    sql.add_argument("--job", default="", help="without a script: the job of a hub that is asked")
    sql.add_argument("--containers", type=int, default=2)
    sql.add_argument("--trigger", help='as "5 seconds" or availableNow; without it, one epoch after the other')
    sql.add_argument("--dialect", default="spark", help="spark, or elf: the language of the ELF paper")
    given = parser.parse_args(arguments)
    if given.command == "shell":
        return with_spark(_shell)
    from holdfast.cli.sql import ask, run_script

    if given.file is None:
        return ask(given.store, given.job)
    return with_spark(lambda: run_script(given.file, given.store, given.containers, given.trigger, given.dialect))


def with_spark(run: Callable[[], int]) -> int:
    """Run what starts a Spark of its own; the code to leave with."""
    try:
        # Spark starts the Java that JAVA_HOME names, and its Python tasks with the Python named here.
        os.environ["JAVA_HOME"] = str(find_java())
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        return run()
    except HoldfastError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _shell() -> int:
    import readline
    import rlcompleter

    from pyspark.sql import SparkSession

    import holdfast as hf

    spark = SparkSession.builder.master("local[*]").appName("holdfast-shell").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    names = {"hf": hf, "spark": spark}
    readline.set_completer(rlcompleter.Completer(names).complete)
    readline.parse_and_bind("tab: complete")
    try:
        code.interact(
            banner=f"Spark {spark.version} is `spark` (local[*]), Holdfast is `hf`. Leave with Ctrl-D.",
            local=names,
            exitmsg="",
        )
    finally:
        spark.stop()
    return 0
