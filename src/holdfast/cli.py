"""The command ``holdfast``: a Python shell with Spark and Holdfast ready."""

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
    parser.parse_args(arguments)
    return with_spark(_shell)


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


if __name__ == "__main__":
    sys.exit(main())
