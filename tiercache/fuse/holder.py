"""The process that holds a mount.

    python -P -m tiercache.fuse.holder --config-fd N [--ready-fd N] [--foreground]

It reads the configuration (JSON, `dataclasses.asdict` of `Config` with paths as text) from one
descriptor, checks what can be checked, starts the worker, mounts, and answers on the other with one
line: `ready`, or why not. Then it supervises until the mount ends. Exit status: 0 when the mount
ended as asked, 1 when it could not begin, 2 for wrong usage.

It stays small and alive where the worker may be large and die: standard library only, one thread,
one poll loop. It never forks by itself: whoever wants it in the background starts it so and reads
the line; `--foreground` only keeps its output where it is instead of in the log file.
"""

from __future__ import annotations

import argparse
import json
import os

from tiercache.errors import MountError
from tiercache.fuse import preflight
from tiercache.fuse.locks import Locks
from tiercache.fuse.runtime import LOG, RuntimeDir, open_log
from tiercache.fuse.settings import Settings, read_settings
from tiercache.fuse.supervisor import StopRequested, Supervisor, report
from tiercache.fuse.workerprocess import DAEMON, lower_oom_score

#: The holder is small and all readers depend on it; the worker can be started again.
OOM_SCORE_ADJ = -900

READY = "ready"


def main() -> int:
    """Hold one mount from beginning to end."""
    arguments = _arguments()
    with open(arguments.config_fd, encoding="utf-8") as file:
        config = json.load(file)
    locks = Locks()
    try:
        settings = read_settings(config)
        runtime = _prepare(settings, locks, arguments.foreground)
    except (MountError, OSError) as e:
        locks.close()
        return _refuse(arguments.ready_fd, str(e))
    try:
        supervisor = Supervisor(
            settings, runtime, locks, arguments.worker, lower_oom_score(OOM_SCORE_ADJ)
        )
        return _run(supervisor, runtime, arguments.ready_fd)
    finally:
        locks.close()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tiercache.fuse.holder", allow_abbrev=False)
    parser.add_argument("--config-fd", type=int, required=True)
    parser.add_argument("--ready-fd", type=int)
    parser.add_argument("--foreground", action="store_true")
    # For tests: another worker, everything after this flag.
    parser.add_argument(
        "--worker", nargs=argparse.REMAINDER, default=DAEMON, help=argparse.SUPPRESS
    )
    return parser.parse_args()


def _prepare(settings: Settings, locks: Locks, foreground: bool) -> RuntimeDir:
    """Check and lock everything, then write to the log. Raises MountError."""
    preflight.check_device()
    preflight.check_privileges(settings.allow_other)
    runtime = RuntimeDir(settings.runtime)
    locks.take(runtime.path, f"mount point {settings.mountpoint}")
    try:
        _check_places(settings, locks)
        _redirect(settings, runtime, foreground)
    except (MountError, OSError):
        runtime.remove(keep_log=True)
        raise
    preflight.raise_open_files()
    return runtime


def _check_places(settings: Settings, locks: Locks) -> None:
    preflight.clear_dead_mounts(settings.mountpoint)
    preflight.check_mountpoint(settings.mountpoint, settings.nonempty)
    preflight.check_places(settings.mountpoint, settings.cache_dirs, settings.log_file)
    for directory in settings.cache_dirs:
        locks.take(directory, f"cache directory {directory}")


def _redirect(settings: Settings, runtime: RuntimeDir, foreground: bool) -> None:
    """Leave the caller's terminal and directory alone, unless it wants the output."""
    if foreground and settings.log_file is None:
        return
    log = open_log(settings.log_file or runtime.path / LOG)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    if not foreground:
        os.chdir("/")


def _run(supervisor: Supervisor, runtime: RuntimeDir, ready_fd: int | None) -> int:
    failed = True
    try:
        supervisor.start()
        failed = False
        if _tell(ready_fd, READY):
            supervisor.supervise()
    except StopRequested:
        failed = False
        _tell(ready_fd, "stopped before the mount was ready")
    except MountError as e:
        return _refuse(ready_fd, str(e))
    finally:
        supervisor.close()
        runtime.remove(keep_log=failed)
    return 0


def _refuse(ready_fd: int | None, text: str) -> int:
    report(text)
    _tell(ready_fd, text)
    return 1


def _tell(ready_fd: int | None, text: str) -> bool:
    """Answer whoever started us; False when that was killed, and nobody knows of a mount."""
    if ready_fd is None:
        return True
    try:
        os.write(ready_fd, " ".join(text.split()).encode() + b"\n")
        os.close(ready_fd)
    except OSError:
        return False
    return True


if __name__ == "__main__":
    raise SystemExit(main())
