"""Other file systems over the same store, doing the same work in the same run.

Those whose command is on PATH take part. Each round every contestant gets a fresh mount and an
empty cache, reads the big object and the small files cold, and both again from its cache. Each is
given a cache on the same disk, as much of it as it wants, and what its manual recommends for
reading; otherwise its defaults.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Protocol

from bench.machine import populate
from bench.rows import Pair, Row
from bench.store import BUCKET, COPIES, Store, empty, list_tree
from bench.work import Work, sequential_work, small_files_work
from bench.workspace import BIG, SMALL, say, write_tree

_READY_TIMEOUT_S = 60.0
_END_TIMEOUT_S = 30.0
_POLL_S = 0.02
GOAL = 1.0
_JUICE = "juice"
_US = "tiercache"


class Peer(Protocol):
    """How a file system is started in the foreground."""

    name: str

    def prepare(self, store: Store) -> None:
        """Do once what it needs before its first mount."""

    def command(self, store: Store, mountpoint: Path, cache: Path) -> list[str]:
        """The command that mounts the store's bucket."""

    def env(self, store: Store) -> dict[str, str]:
        """What its environment must hold."""


class S3fs:
    """s3fs-fuse."""

    name = "s3fs"

    def prepare(self, store: Store) -> None:
        """See `Peer`."""
        password = store.workspace / "s3fs-password"
        password.touch(mode=0o600)
        password.write_text(f"{store.server.access_key}:{store.server.secret_key}\n")

    def command(self, store: Store, mountpoint: Path, cache: Path) -> list[str]:
        """See `Peer`."""
        options = f"passwd_file={store.workspace / 's3fs-password'},url={store.url},ro"
        options += f",use_path_request_style,use_cache={cache},parallel_count=8,umask=022"
        return ["s3fs", BUCKET, str(mountpoint), "-f", "-o", options]

    def env(self, store: Store) -> dict[str, str]:
        """See `Peer`."""
        return {}


class Rclone:
    """rclone mount."""

    name = "rclone"

    def prepare(self, store: Store) -> None:
        """See `Peer`."""

    def command(self, store: Store, mountpoint: Path, cache: Path) -> list[str]:
        """See `Peer`."""
        return [
            *("rclone", "mount", f":s3:{BUCKET}", str(mountpoint), "--config", os.devnull),
            *("--read-only", "--vfs-cache-mode", "full", "--cache-dir", str(cache)),
            *("--vfs-read-chunk-size", "8M", "--vfs-read-chunk-streams", "8", "--no-modtime"),
        ]

    def env(self, store: Store) -> dict[str, str]:
        """See `Peer`."""
        return {
            "RCLONE_S3_PROVIDER": "SeaweedFS",
            "RCLONE_S3_ENDPOINT": store.url,
            "RCLONE_S3_ACCESS_KEY_ID": store.server.access_key,
            "RCLONE_S3_SECRET_ACCESS_KEY": store.server.secret_key,
            "RCLONE_S3_REGION": store.server.region,
        }


class JuiceFs:
    """JuiceFS, which keeps objects of its own format: the same files, stored once more."""

    name = "juicefs"

    def prepare(self, store: Store) -> None:
        """See `Peer`."""
        server = store.server
        server.create_bucket(_JUICE)
        keys = ["--access-key", server.access_key, "--secret-key", server.secret_key]
        bucket = f"{store.url}/{_JUICE}"
        command = ["juicefs", "format", "--storage", "s3", "--bucket", bucket, *keys]
        command += [self._meta(store), BUCKET]
        subprocess.run(command, env=_environment(self, store), check=True, capture_output=True)
        with running(self, store) as root:
            parts = store.dataset.parts & {BIG, SMALL}
            write_tree(replace(store.dataset, parts=parts), root)

    def command(self, store: Store, mountpoint: Path, cache: Path) -> list[str]:
        """See `Peer`."""
        places = ["--cache-dir", str(cache), "--log", f"{store.workspace}/juicefs.log"]
        meta, size = self._meta(store), str(shutil.disk_usage(cache).free >> 20)
        flags = ["--no-usage-report", "--cache-size", size, *places]
        return ["juicefs", "mount", *flags, meta, str(mountpoint)]

    def env(self, store: Store) -> dict[str, str]:
        """See `Peer`."""
        return {"HOME": str(store.workspace)}

    def _meta(self, store: Store) -> str:
        return f"sqlite3://{store.workspace}/juicefs.db"


PEERS: Sequence[Peer] = (S3fs(), Rclone(), JuiceFs())
WORKS = {"sequential": sequential_work, "small-files": small_files_work}
ROWS = [
    f"peer.{peer.name}.{work}.{state}"
    for peer in PEERS
    for work in WORKS
    for state in ("cold", "warm")
]


def measure(store: Store, rounds: int, wanted: Collection[str]) -> list[Row]:
    """Rows `peer.NAME.WORK.cold` and `.warm`, ours over theirs, of those that are installed.

    Those *wanted*, and others of the same peers and works.
    """
    peers = [peer for peer in PEERS if _any(wanted, f"peer.{peer.name}.*")]
    for missing in [peer for peer in peers if not shutil.which(peer.name)]:
        say(f"peer.{missing.name} is left out: it is not installed")
        peers.remove(missing)
    if not peers:
        return []
    works = [
        work(store.dataset) for name, work in WORKS.items() if _any(wanted, f"peer.*.{name}.*")
    ]
    for peer in peers:
        say(f"peer.{peer.name}: preparing")
        peer.prepare(store)
    say(f"{', '.join(f'peer.{peer.name}' for peer in peers)}, {rounds} rounds")
    rates: dict[str, list[dict[str, float]]] = {
        name: [] for name in (_US, *[p.name for p in peers])
    }
    contestants: list[Peer | None] = [None, *peers]
    for number in range(rounds):
        for contestant in contestants if number % 2 else reversed(contestants):
            with _cold(contestant, store) as root:
                rates[contestant.name if contestant else _US].append(_rates(works, root))
    return [
        _row(f"peer.{peer.name}.{key}", key, works, rates[_US], rates[peer.name])
        for peer in peers
        for key in rates[_US][0]
    ]


def _any(wanted: Collection[str], pattern: str) -> bool:
    return any(fnmatchcase(name, pattern) for name in wanted)


@contextmanager
def _cold(peer: Peer | None, store: Store) -> Iterator[Path]:
    """A cold mount of a contestant, its directories listed; None is us."""
    if peer is None:
        with store.cold_mount() as mount:
            yield mount.mountpoint
        return
    with running(peer, store) as root:
        list_tree(root)
        yield root


def _rates(works: Sequence[Work], root: Path) -> dict[str, float]:
    populate(COPIES * sum(work.size for work in works))
    return {f"{work.name}.{state}": work.read(root) for work in works for state in ("cold", "warm")}


def _row(
    name: str,
    key: str,
    works: Sequence[Work],
    ours: Sequence[dict[str, float]],
    theirs: Sequence[dict[str, float]],
) -> Row:
    unit = next(work.unit for work in works if key.startswith(work.name))
    pairs = [Pair(mine[key], other[key]) for mine, other in zip(ours, theirs, strict=True)]
    return Row(name, unit, name.split(".")[1], GOAL, pairs)


@contextmanager
def running(peer: Peer, store: Store) -> Iterator[Path]:
    """A mount of *peer* with an empty cache, until the block ends."""
    mountpoint = store.workspace / f"peer-{peer.name}"
    mountpoint.mkdir(exist_ok=True)
    cache = Path(tempfile.mkdtemp(prefix="cache-", dir=store.workspace))
    log = store.workspace / f"{peer.name}.log"
    with log.open("ab") as said:
        process = subprocess.Popen(
            peer.command(store, mountpoint, cache),
            env=_environment(peer, store),
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
        )
    try:
        _wait_mounted(mountpoint, process, log)
        yield mountpoint
    finally:
        _end(mountpoint, process)
        empty(cache)


def _environment(peer: Peer, store: Store) -> dict[str, str]:
    return {**os.environ, **peer.env(store)}


def _wait_mounted(mountpoint: Path, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _READY_TIMEOUT_S
    while not mountpoint.is_mount():
        if process.poll() is not None or time.monotonic() > deadline:
            words = log.read_text(errors="replace").splitlines()
            raise OSError(f"{log.stem} did not mount: {words[-1] if words else 'no output'}")
        time.sleep(_POLL_S)


def _end(mountpoint: Path, process: subprocess.Popen[bytes]) -> None:
    if mountpoint.is_mount():
        subprocess.run(["umount", str(mountpoint)], check=False, capture_output=True)
    with suppress(subprocess.TimeoutExpired):
        process.wait(_END_TIMEOUT_S)
    if process.poll() is None:
        process.kill()
        process.wait()
    if mountpoint.is_mount():
        subprocess.run(["umount", "-l", str(mountpoint)], check=False, capture_output=True)
