"""`python -m bench NAME [--only ROW,...] [--json FILE|-] [--plot FILE]`: run and print a table.

Figures are kept as they come. Exit status: 0 when it ran, whatever the figures; 1 when it could
not, or was stopped; 2 for wrong usage.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from bench.machine import facts
from bench.mlperf import WORKLOADS
from bench.report import Report
from bench.rows import table
from bench.scenarios import SCENARIOS, Options, Training
from bench.selection import SelectionError, select
from bench.workspace import SCALES, say
from tiercache.config_units import parse_size
from tiercache.errors import TierCacheError

ALL = "all"
STDOUT = "-"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the scenario that the command line names; returns the exit status."""
    parser = _parser()
    parsed = parser.parse_args(arguments)
    if parsed.workload and parsed.name != "mlperf":
        parser.error(f"{parsed.name} has no workloads, mlperf has")
    only = _only(parser, parsed.name, parsed.only)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _stop)
    scale = SCALES[parsed.scale]
    training = Training(
        (parsed.workload,) if parsed.workload else tuple(WORKLOADS),
        parsed.accelerators,
        parsed.dataset_size,
    )
    rounds = parsed.rounds or scale.rounds
    options = Options(scale, rounds, only, parsed.dir, parsed.driver, training)
    names = list(SCENARIOS) if parsed.name == ALL else [parsed.name]
    file = Path(parsed.json) if parsed.json and parsed.json != STDOUT else None
    try:
        report = Report(parsed.name, facts(parsed.dir or Path("/var/tmp")), scale.name, file)
    except OSError as error:
        say(f"failed: {error}")
        return 1
    ran = _measure(names, options, report)
    print(report.text() if parsed.json == STDOUT else table(report.rows))
    if parsed.plot:
        from bench.plot import draw  # Pillow is needed for a chart only

        draw(report.rows, parsed.name, parsed.plot)
    return 0 if ran else 1


def _measure(names: Sequence[str], options: Options, report: Report) -> bool:
    """Run scenarios one after the other; False when one could not, or was stopped."""
    try:
        for name in names:
            with closing(SCENARIOS[name].run(options)) as rows:
                for row in rows:
                    report.add(row)
        report.finish()
    except (TierCacheError, OSError, ValueError) as error:
        say(f"failed: {error}")
        return False
    except SystemExit:
        say("stopped; what was measured is kept")
        return False
    return True


def _stop(*_: object) -> None:
    """Unwind, so that mounts go away, which another signal must not disturb."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    sys.exit(1)


def _only(parser: argparse.ArgumentParser, name: str, patterns: str | None) -> frozenset[str]:
    """The rows that `--only` asks for; none without it. Ends the program when there are none."""
    if patterns is None:
        return frozenset()
    able = [scenario for scenario in SCENARIOS if SCENARIOS[scenario].rows]
    if name not in able:
        parser.error(
            f"the rows of {name} are measured together; --only is for {' and '.join(able)}"
        )
    try:
        return select(SCENARIOS[name].rows, patterns.split(","))
    except SelectionError as error:
        parser.error(str(error))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("name", choices=[*SCENARIOS, ALL], help="what to measure")
    parser.add_argument("workload", nargs="?", choices=list(WORKLOADS), help="of mlperf; all")
    parser.add_argument("--accelerators", type=int, default=1, metavar="N", help="of mlperf")
    parser.add_argument("--dataset-size", type=parse_size, metavar="SIZE", help="of mlperf")
    parser.add_argument("--only", metavar="ROW[,ROW...]", help="of hot, cold; beginnings, patterns")
    parser.add_argument(
        "--json",
        metavar="FILE",
        type=_report_file,
        help="keep the report as JSON, row by row; - is stdout",
    )
    parser.add_argument("--plot", metavar="FILE", type=Path, help="draw the ratios as a PNG")
    parser.add_argument("--rounds", type=_rounds, help="pairs per row, at least 5")
    parser.add_argument("--scale", choices=list(SCALES), default="full", help="small: smoke test")
    parser.add_argument("--dir", metavar="DIR", type=Path, help="where data and cache are put")
    parser.add_argument("--driver", choices=["auto", "kernel", "libfuse"], default="auto")
    return parser


def _report_file(text: str) -> str:
    if text != STDOUT and Path(text).exists() and not Path(text).is_file():
        raise argparse.ArgumentTypeError(f"{text} is not a file that can be replaced")
    return text


def _rounds(text: str) -> int:
    rounds = int(text)
    if rounds < 5:
        raise argparse.ArgumentTypeError("a median of fewer than 5 pairs says nothing")
    return rounds


if __name__ == "__main__":
    sys.exit(main())
