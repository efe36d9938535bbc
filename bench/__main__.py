"""`python -m bench NAME [--json FILE|-] [--plot FILE]`: run, print a table, keep the figures.

Exit status: 0 when it ran, whatever the figures; 1 when it could not; 2 for wrong usage.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.machine import facts
from bench.mlperf import WORKLOADS
from bench.rows import report, table
from bench.scenarios import SCENARIOS, Options, Training
from bench.workspace import SCALES, say
from tiercache.config_units import parse_size
from tiercache.errors import TierCacheError

ALL = "all"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the scenario that the command line names; returns the exit status."""
    parser = _parser()
    parsed = parser.parse_args(arguments)
    if parsed.workload and parsed.name != "mlperf":
        parser.error(f"{parsed.name} has no workloads, mlperf has")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # unwinds, so that mounts go away
    scale = SCALES[parsed.scale]
    training = Training(
        (parsed.workload,) if parsed.workload else tuple(WORKLOADS),
        parsed.accelerators,
        parsed.dataset_size,
    )
    rounds = parsed.rounds or scale.rounds
    options = Options(scale, rounds, parsed.dir, parsed.driver, training)
    machine = facts(parsed.dir or Path("/var/tmp"))
    names = list(SCENARIOS) if parsed.name == ALL else [parsed.name]
    try:
        rows = [row for name in names for row in SCENARIOS[name](options)]
    except (TierCacheError, OSError, ValueError) as error:
        say(f"failed: {error}")
        return 1
    text = json.dumps(report(parsed.name, machine, rows, scale.name), indent=2)
    if parsed.json == "-":
        print(text)
    else:
        print(table(rows))
        if parsed.json:
            Path(parsed.json).write_text(text + "\n", encoding="utf-8")
    if parsed.plot:
        from bench.plot import draw  # Pillow is needed for a chart only

        draw(rows, parsed.name, parsed.plot)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("name", choices=[*SCENARIOS, ALL], help="what to measure")
    parser.add_argument("workload", nargs="?", choices=list(WORKLOADS), help="of mlperf; all")
    parser.add_argument("--accelerators", type=int, default=1, metavar="N", help="of mlperf")
    parser.add_argument("--dataset-size", type=parse_size, metavar="SIZE", help="of mlperf")
    parser.add_argument("--json", metavar="FILE", help="write the report as JSON; - is stdout")
    parser.add_argument("--plot", metavar="FILE", type=Path, help="draw the ratios as a PNG")
    parser.add_argument("--rounds", type=_rounds, help="pairs per row, at least 5")
    parser.add_argument("--scale", choices=list(SCALES), default="full", help="small: smoke test")
    parser.add_argument("--dir", metavar="DIR", type=Path, help="where data and cache are put")
    parser.add_argument("--driver", choices=["auto", "kernel", "libfuse"], default="auto")
    return parser


def _rounds(text: str) -> int:
    rounds = int(text)
    if rounds < 5:
        raise argparse.ArgumentTypeError("a median of fewer than 5 pairs says nothing")
    return rounds


if __name__ == "__main__":
    sys.exit(main())
