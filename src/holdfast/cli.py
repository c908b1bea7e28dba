"""The command ``holdfast``: the demo, and a Python shell with Spark and Holdfast ready."""

from __future__ import annotations

import argparse
import code
import os
import sys
from collections.abc import Sequence

from holdfast.errors import HoldfastError
from holdfast.java import find_java


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="holdfast", description="State that stays, for PySpark streams.")
    commands = parser.add_subparsers(dest="command", required=True)
    demo = commands.add_parser("demo", help="a click stream, a killed container, a checked result")
    demo.add_argument("--rows", type=_positive, default=6_000_000, help="clicks in all (%(default)s)")
    demo.add_argument("--containers", type=_positive, default=3, help="how many to start with (%(default)s)")
    demo.add_argument("--no-kill", action="store_true", help="let every container live")
    commands.add_parser("shell", help="Python with spark and hf ready")
    options = parser.parse_args(arguments)
    try:
        # Spark starts the Java that JAVA_HOME names, and its Python tasks with the Python named here.
        os.environ["JAVA_HOME"] = str(find_java())
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        if options.command == "shell":
            return _shell()
        from holdfast.demo import demo as run_demo

        return run_demo(rows=options.rows, containers=options.containers, kill=not options.no_kill)
    except HoldfastError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _positive(text: str) -> int:
    number = int(text.replace("_", "").replace(",", ""))
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


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
