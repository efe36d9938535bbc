"""The whole way of the demo and back: server, dataset, mount, loader, and a clean end."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from tiercache.errors import TierCacheError
from tiercache.testing.mounting import CommandMount
from tiercache.testing.seaweed import SeaweedServer
from tiercache.types import GIB
from tiercache_cli.demo.dataset import Manifest, plan
from tiercache_cli.demo.figures import Counters, Epoch, Outcome
from tiercache_cli.demo.reader import Reader
from tiercache_cli.demo.show import Stages
from tiercache_cli.demo.upload import upload

BUCKET = "demo"
EPOCHS = 2
WORKERS = 2
#: Importing PyTorch from a cold disk takes its time.
_READY_TIMEOUT_S = 120.0
_EPOCH_TIMEOUT_S = 300.0
_ENDING = (signal.SIGINT, signal.SIGTERM)


class DemoError(TierCacheError):
    """The demo cannot run here; the message is one line that says what to do."""


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line said."""

    size: int
    driver: str = "auto"


def run(options: Options, stages: Stages, hold: Callable[[CommandMount], None]) -> Outcome:
    """Do everything; whatever was started or made is gone afterwards, also after Ctrl-C.

    `hold` is called while everything is still up. Raises `TierCacheError` when a part fails, and
    `KeyboardInterrupt` after Ctrl-C or SIGTERM.
    """
    with _signals(), _home(options.size) as home, _calm_end():
        with stages.stage("Starting SeaweedFS, an S3 server, on this machine"):
            server = home.enter_context(SeaweedServer(home.path / "store"))
            server.create_bucket(BUCKET)
        manifest = _fill(options, stages, server)
        mount = _mount(options, stages, server, home)
        outcome = _outcome(manifest, mount)
        before = Counters.of(mount.status())  # before the loader looks at file names and footers
        reader = _reader(home, manifest, mount)
        _read(reader, mount, stages, outcome, before)
        hold(mount)
    return outcome


class _Home(contextlib.ExitStack):
    """A temporary directory, and what is to be ended before it is removed, last one first."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.callback(shutil.rmtree, path, ignore_errors=True)


def _home(size: int) -> _Home:
    """Made where TMPDIR says, else in /var/tmp: /tmp may be memory."""
    parent = Path(os.environ.get("TMPDIR") or "/var/tmp")
    # The server's copy, the cache, and the free space a cache leaves to others.
    needed = 3 * size + 2 * GIB
    free = shutil.disk_usage(parent).free
    if free < needed:
        have, want = f"{free / GIB:.1f}", f"{needed / GIB:.1f}"
        raise DemoError(f"{parent}: {have} GiB free, {want} needed; set TMPDIR or a smaller --size")
    return _Home(Path(tempfile.mkdtemp(prefix="tiercache-demo-", dir=parent)))


@contextlib.contextmanager
def _signals() -> Iterator[None]:
    """Let SIGTERM do what Ctrl-C does; restore both afterwards."""
    before = {number: signal.getsignal(number) for number in _ENDING}
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _calm_end() -> Iterator[None]:
    """A second Ctrl-C must not interrupt the clean-up, whose every step is bounded in time."""
    try:
        yield
    finally:
        for number in _ENDING:
            signal.signal(number, signal.SIG_IGN)


def _fill(options: Options, stages: Stages, server: SeaweedServer) -> Manifest:
    parts = plan(options.size)
    total = sum(part.size for part in parts)
    with stages.stage(f"Making and storing {len(parts)} objects", total) as advance:
        return upload(server, BUCKET, parts, advance)


def _mount(options: Options, stages: Stages, server: SeaweedServer, home: _Home) -> CommandMount:
    source, mountpoint = f"s3://{BUCKET}", home.path / "mount"
    mountpoint.mkdir()
    flags = [
        f"--cache-dir={home.path / 'cache'}",
        f"--endpoint-url={server.endpoint_url}",
        f"--driver={options.driver}",
    ]
    mount = CommandMount(source, mountpoint, flags, server.env())
    home.callback(mount.end)
    with stages.stage(f"tiercache mount {source} {mountpoint}"):
        mount.mount()
    return mount


def _reader(home: _Home, manifest: Manifest, mount: CommandMount) -> Reader:
    file = home.path / "manifest.json"
    file.write_text(json.dumps(asdict(manifest)))
    log = home.path / "loader.log"
    reader = Reader(mount.mountpoint, file, epochs=EPOCHS, workers=WORKERS, log=log)
    home.callback(reader.end)
    return reader


def _read(
    reader: Reader, mount: CommandMount, stages: Stages, outcome: Outcome, before: Counters
) -> None:
    """Epoch by epoch, with a look at the mount's counters in between."""
    with stages.stage("Starting the loader program"):
        engine = reader.expect("ready", _READY_TIMEOUT_S)["engine"]
    outcome.reader = f"{engine}, {WORKERS} workers"
    for number in range(1, EPOCHS + 1):
        with stages.stage(f"Epoch {number} of {EPOCHS}"):
            reader.proceed()
            said = reader.expect("epoch", _EPOCH_TIMEOUT_S)
        after = Counters.of(mount.status())
        outcome.epochs.append(
            Epoch(number, said["samples"], said["bytes"], said["seconds"], after.since(before))
        )
        outcome.add_problems(f"epoch {number}", said)
        before = after
    with stages.stage("Checking every byte of every file"):
        reader.proceed()
        said = reader.expect("files", _EPOCH_TIMEOUT_S)
    outcome.checked_bytes = said["bytes"]
    outcome.add_problems("files", said)


def _outcome(manifest: Manifest, mount: CommandMount) -> Outcome:
    outcome = Outcome(
        source=mount.source,
        mountpoint=str(mount.mountpoint),
        files=len(manifest.files),
        samples=len(manifest.samples),
        bytes=manifest.size,
    )
    outcome.describe_mount(mount.status())
    return outcome
