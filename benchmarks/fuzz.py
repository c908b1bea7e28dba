"""Calls that make no sense, with a valid token and without, to a container: crashes and growth."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from common import parser, report, table

TEST = Path(__file__).parents[1] / "tests" / "wire" / "test_door_fuzz.py"
DOORS = 1
A_ROUND = 2_000
"""Calls, at least."""
HUNDRED = 10
"""Rounds in which every handler is reached a hundred times."""


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--calls", type=int, default=20_000)
    made.add_argument("--first-seed", type=int, default=1)
    options = made.parse_args()
    rounds = 1 if options.quick else max(HUNDRED, -(-options.calls // A_ROUND))
    more = ["--rounds", str(rounds), "--first-seed", str(options.first_seed)]
    command = [sys.executable, "-m", "pytest", "-n", "0", "-q", "-s", str(TEST), *more]
    done = subprocess.run(command, cwd=TEST.parents[2], capture_output=True, text=True, check=False)
    doors = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"calls"')]
    shown = table("calls that make no sense", "door", "calls", "without a token", "growth MiB", "least reached")
    for door in doors:
        name, (least, kind) = door["door"], door["least_reached"]
        shown.add_row(
            name, str(door["calls"]), str(door["without_a_token"]), f"{door['growth_mib']}", f"{least} {kind}"
        )
    result = {
        "calls": sum(door["calls"] for door in doors),
        "crashes": sum(door["crashes"] for door in doors) + DOORS - len(doors),
        "growth_mib": max((door["growth_mib"] for door in doors), default=0.0),
        "held": done.returncode == 0,
    }
    report(shown, result)
    if not result["held"]:
        sys.exit(done.stdout[-4000:] + done.stderr[-2000:])


if __name__ == "__main__":
    main()
