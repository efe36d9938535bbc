"""`tiercache umount`: take a mount away and wait until its processes have closed the cache."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Final

import click

from tiercache.config_file import load_config
from tiercache.errors import MountError
from tiercache.fuse import fusermount, syscalls
from tiercache.fuse.locks import Locks
from tiercache.fuse.runtime import RuntimeDir
from tiercache_cli.mounts import KnownMount, find_mount, why_not
from tiercache_cli.processes import await_pids
from tiercache_cli.users import User, users_of

#: Longest wait for the catalog and the tiers to be closed in good order.
FLUSH_TIMEOUT_S: Final = 60.0

#: With --force: what processes get to end by themselves, when told to, and when killed.
FORCE_TIMEOUT_S: Final = 2.0

#: Users of a busy mount that are listed.
SHOWN_MAX: Final = 20


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("mountpoint", required=False, type=click.Path(path_type=Path))
@click.option("--config", "file", type=click.Path(path_type=Path), help="Take MOUNTPOINT from it.")
@click.option("--lazy", is_flag=True, help="Detach now; whoever has files open may finish.")
@click.option("--force", is_flag=True, help="Fail what is being read and end the processes.")
@click.option("--if-mounted", is_flag=True, help="Nothing mounted there is no failure.")
def umount(
    mountpoint: Path | None, file: Path | None, lazy: bool, force: bool, if_mounted: bool
) -> None:
    """Unmount MOUNTPOINT and wait until the cache is safe on disk.

    A busy mount is left alone and whoever keeps it busy is named. A dead mount is cleared.
    """
    place = _place(mountpoint, file)
    known = find_mount(place)
    if known is None:
        if if_mounted:
            return
        raise MountError(why_not(place))
    # A shell inside the mount started us there, and we would keep it busy ourselves.
    os.chdir("/")
    if force:
        _force(known)
    elif known.mounted and (lazy or known.holder_pid is None):
        _detach(known)
    else:
        _unmount(known)
    _tidy(known)


def _place(mountpoint: Path | None, file: Path | None) -> Path:
    if mountpoint is not None:
        return mountpoint
    if file is None:
        raise click.UsageError("give MOUNTPOINT or --config")
    return load_config(file).mount.mountpoint


def _unmount(known: KnownMount) -> None:
    if known.mounted:
        try:
            fusermount.unmount(known.mountpoint)
        except MountError as error:
            users = users_of(known.mountpoint)
            raise MountError(_busy(known, users)) if users else error from None
    _wait_for_end(known)


def _busy(known: KnownMount, users: list[User]) -> str:
    lines = [f"{known.mountpoint} is busy; `tiercache umount --lazy` detaches it. Used by:"]
    lines += [f"  {user.pid} {user.command[:60]}: {user.use}" for user in users[:SHOWN_MAX]]
    if len(users) > SHOWN_MAX:
        lines.append(f"  and {len(users) - SHOWN_MAX} more")
    return "\n".join(lines)


def _detach(known: KnownMount) -> None:
    """Out of the tree at once; the processes end with the last user."""
    users = users_of(known.mountpoint)
    fusermount.unmount(known.mountpoint, lazy=True)
    if not users:
        _wait_for_end(known)
        return
    pids = sorted({user.pid for user in users})
    click.echo(
        f"tiercache: detached {known.mountpoint}; it ends when these processes let go: "
        f"{', '.join(map(str, pids))}",
        err=True,
    )


def _wait_for_end(known: KnownMount) -> None:
    if still := await_pids(known.pids, FLUSH_TIMEOUT_S, f"closing the cache of {known.source}"):
        raise MountError(
            f"{known.mountpoint} is unmounted, but process {still[0]} did not end within"
            f" {FLUSH_TIMEOUT_S:g} s; see {known.state.get('log')}"
        )


def _force(known: KnownMount) -> None:
    """Abort requests in flight, take the mount out of the tree, end its processes."""
    if known.mounted:
        if syscalls.privileged():
            _abort(known.mountpoint)
        else:
            fusermount.unmount(known.mountpoint, lazy=True)
    doing = f"ending {known.source}"
    for _ in range(2):  # the second signal cuts short what the first one lets finish
        if await_pids(known.pids, FORCE_TIMEOUT_S, doing) and known.holder_pid:
            _send(signal.SIGTERM, known.holder_pid)
    for pid in await_pids(known.pids, FORCE_TIMEOUT_S, doing):
        _send(signal.SIGKILL, pid)
    if still := await_pids(known.pids, FORCE_TIMEOUT_S, doing):
        raise MountError(f"process {still[0]} does not end even when killed")


def _tidy(known: KnownMount) -> None:
    """Remove what a holder that was killed could not; its log stays for whoever asks why."""
    if not known.runtime.is_dir():
        return
    locks = Locks()
    try:
        locks.take(known.runtime, f"mount point {known.mountpoint}")
        RuntimeDir(known.runtime).remove(keep_log=True)
    except MountError:
        return  # still served, by a reader's leave or a new mount; or another user's
    finally:
        locks.close()


def _send(number: signal.Signals, pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _abort(mountpoint: Path) -> None:
    try:
        syscalls.umount(mountpoint, syscalls.MNT_FORCE | syscalls.MNT_DETACH)
    except OSError as error:
        raise MountError(f"cannot unmount {mountpoint}: {error.strerror}") from error
