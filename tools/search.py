"""``./dev search``: looks for faults that nobody has thought of, for as long as it is told, with seeds from the clock.

Each **kind** of search is a command that a seed decides: some hundred runs of the simulator, a Hypothesis state machine
that is not derandomised, random drills without Spark, oracles. Rounds of them run side by side, each kind for its share
of the time, and each prints its seed. What fails is printed whole, with the one line that repeats it; then the exit
code is 1. What is found becomes a fixed test.

Time decides nothing. A round has so much to do, not so long; one that is still at it long after the end (on a busy
machine) is cut short, which is said and is not a failure.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROCESSES = 2
GRACE_SECONDS = 300.0
"""So long after the end a round that has begun may go on."""
CUT_SHORT = None
"""The exit code of what did not come to its end."""


@dataclass(frozen=True)
class Kind:
    name: str
    share: float
    """Of the time, beside those of the others."""
    command: tuple[str, ...]
    """After the name of this Python; ``{seed}`` is put in."""
    what: str

    def arguments(self, seed: int, *, small: bool) -> list[str]:
        """``small``: it may take its time to make what it finds small."""
        more = ["--shrink"] if small and "pytest" in self.command else []
        return [sys.executable, *(word.replace("{seed}", str(seed)) for word in self.command), *more]


def simulated(name: str, share: float, runs: int, *more: str, what: str) -> Kind:
    return Kind(name, share, ("-m", "simulator", "--first", "{seed}", "--seeds", str(runs), *more), what)


def tested(name: str, share: float, *places: str, what: str) -> Kind:
    """The random ones among these tests: what Hypothesis draws, and what a ``drill_seed`` decides."""
    pytest = ("-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "--search", "{seed}")
    return Kind(name, share, (*pytest, "--hypothesis-seed", "{seed}", *places), what)


KINDS = (
    simulated("job", 3, 100, "--scenario", "job", what="a whole job with the shipped master, under faults"),
    simulated("shipped", 3, 20, "--scenario", "job", "--shipped", what="the same with shipped containers and ledger"),
    simulated("changes", 3, 15, "--scenario", "changes", what="the same with a graph that changes meanwhile"),
    simulated("ring", 1, 150, "--scenario", "ring", what="the overlay of containers"),
    simulated("recovering", 1, 500, "--scenario", "recovering", what="recovery over the ring"),
    tested("masters", 3, "tests/master", what="state machines of master, feed, membership, placement"),
    tested("graphs", 2, "tests/testing", what="random graphs in any disorder, with crashes"),
    tested("histories", 2, "tests/container", what="graphs that change, and slices that come back across that"),
    tested("operators", 3, "tests/operators", what="each kind of stage against its model in plain Python"),
    tested("state", 1, "tests/state", "tests/log", "tests/eventual", what="tables, copies, the store, units of state"),
    tested("plans", 1, "tests/plan", "tests/driver", "tests/wire", what="plans, their changes, what crosses"),
    tested("overlay", 1, "tests/ring", "tests/safety", "tests/recovery", what="the ring's pure parts"),
    tested("sql", 1, "tests/api", what="random SQL against DuckDB"),
)


@dataclass
class Round:
    kind: Kind
    seed: int
    code: int | None = CUT_SHORT
    seconds: float = 0.0
    said: str = ""

    @property
    def failed(self) -> bool:
        return self.code is not CUT_SHORT and self.code != 0

    @property
    def repeat(self) -> str:
        return f"./dev search --only {self.kind.name} --seed {self.seed}"

    @property
    def line(self) -> str:
        came = "CUT SHORT" if self.code is CUT_SHORT else "FAILED" if self.failed else "passed"
        last = self.said.strip().rsplit("\n", 1)[-1].strip("= ")
        return f"{self.kind.name:10} seed {self.seed}: {came} after {self.seconds:.0f} s" + (
            f" ({last})" if last else ""
        )


def neediest(kinds: Sequence[Kind], used: Mapping[str, float]) -> Kind:
    """Whose turn it is: who has had the least of its share. In the order of the kinds, where that says nothing."""
    return min(kinds, key=lambda kind: used.get(kind.name, 0.0) / kind.share)


@dataclass
class Search:
    kinds: Sequence[Kind]
    seconds: float
    grace: float = GRACE_SECONDS
    tell: Callable[[str], None] = print
    rounds: list[Round] = field(default_factory=list)
    _used: dict[str, float] = field(default_factory=dict)
    _seed: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _running: set[int] = field(default_factory=set)
    _ended: bool = False

    def run(self) -> bool:
        """Whether nothing failed."""
        until = time.monotonic() + self.seconds
        with ThreadPoolExecutor(PROCESSES) as pool:
            workers = [pool.submit(self._work, until) for _ in range(PROCESSES)]
            try:
                for worker in workers:
                    worker.result()
            except BaseException:
                self._end()
                raise
        self._sum_up()
        return not any(one.failed for one in self.rounds) and any(one.code == 0 for one in self.rounds)

    def _work(self, until: float) -> None:
        """Round after round until the time is over; one at least."""
        while not self._over():
            with self._lock:
                kind = neediest(self.kinds, self._used)
                # Counted at once, so that the other one does not take the same; made right when it is over.
                self._used[kind.name] = self._used.get(kind.name, 0.0) + 1.0
                self._seed = max(self._seed + 1, time.time_ns() // 1_000_000)
                one = Round(kind, self._seed)
            self._play(one, until + self.grace)
            if self._over():
                return
            with self._lock:
                self._used[kind.name] += one.seconds - 1.0
                self.rounds.append(one)
                self.tell(one.line)
                if one.failed:
                    self.tell(f"{one.said.rstrip()}\nTo repeat it: {one.repeat}")
            if time.monotonic() >= until:
                return

    def _over(self) -> bool:
        with self._lock:
            return self._ended

    def _play(self, one: Round, latest: float) -> None:
        began = time.monotonic()
        process = subprocess.Popen(
            one.kind.arguments(one.seed, small=False),
            cwd=ROOT,
            env=environment(one.seed),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,  # what it starts ends with it
        )
        with self._lock:
            self._running.add(process.pid)
            over = self._ended
        if over:
            end(process.pid)
        try:
            one.said, _ = process.communicate(timeout=max(0.0, latest - time.monotonic()))
            one.code = process.returncode
        except subprocess.TimeoutExpired:
            end(process.pid)
            process.communicate()
        finally:
            with self._lock:
                self._running.discard(process.pid)
            one.seconds = time.monotonic() - began

    def _end(self) -> None:
        with self._lock:
            self._ended = True
            running = list(self._running)
        for pid in running:
            end(pid)

    def _sum_up(self) -> None:
        cut = [one for one in self.rounds if one.code is CUT_SHORT]
        failed = [one for one in self.rounds if one.failed]
        for one in cut:
            self.tell(f"Cut short, which says nothing: {one.repeat}")
        for one in failed:
            self.tell(f"Failed, to repeat: {one.repeat}")
        searched = len({one.kind.name for one in self.rounds if one.code == 0})
        missed = [kind.name for kind in self.kinds if kind.name not in {one.kind.name for one in self.rounds}]
        if missed:
            self.tell(f"Had no turn in this time: {', '.join(missed)}")
        passed = len(self.rounds) - len(cut) - len(failed)
        self.tell(f"search: {passed} passed, {len(failed)} failed, {len(cut)} cut short; {searched} kinds")


def end(group: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def environment(seed: int) -> dict[str, str]:
    """Sets of names have another order with each seed, too."""
    return {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": str(seed % 2**32)}


def repeated(kind: Kind, seed: int) -> int:
    """One round once more, with all that it says; what Hypothesis finds is made small."""
    return subprocess.run(kind.arguments(seed, small=True), cwd=ROOT, env=environment(seed)).returncode


def main(arguments: Sequence[str] | None = None) -> int:
    listed = "\n".join(f"  {kind.name:12} {kind.what}" for kind in KINDS)
    made = argparse.ArgumentParser(
        prog="./dev search",
        description="Looks for faults that nobody has thought of, with seeds from the clock.",
        epilog=f"kinds of search:\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--minutes", type=float, default=10.0, help="so long (default 10)")
    made.add_argument(
        "--only", metavar="KIND", choices=[kind.name for kind in KINDS], action="append", help="this kind; again: more"
    )
    made.add_argument("--seed", type=int, help="with --only: that one round again")
    options = made.parse_args(arguments)
    kinds = [kind for kind in KINDS if options.only is None or kind.name in options.only]
    if options.seed is not None:
        if len(kinds) != 1:
            made.error("--seed goes with one --only, which says what to repeat")
        return repeated(kinds[0], options.seed)
    return 0 if Search(kinds, 60 * options.minutes).run() else 1


def leave(*_: object) -> None:
    """Whoever ends the search ends what it has started, too."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, leave)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    sys.exit(main())
