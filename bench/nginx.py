"""nginx as a cache in front of a store: a server that is not the limit, with and without TLS.

It answers from its cache at several GB/s for 0.15 CPU seconds per GB, with the ETags of the store
behind it. Only what it was asked for before is there, hence `warm`. It checks no signature of what
it has.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

from tiercache.testing.tls import LocalAuthority

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

_CONFIG = """
daemon off; user {user}; worker_processes {workers}; pid {home}/pid; error_log {home}/error.log;
events {{ worker_connections 512; }}
http {{
  access_log off; sendfile on; tcp_nodelay on; tcp_nopush off;
  keepalive_requests 1000000; keepalive_timeout 300s;
  client_body_temp_path {home}/body; fastcgi_temp_path {home}/fastcgi;
  uwsgi_temp_path {home}/uwsgi; scgi_temp_path {home}/scgi; proxy_temp_path {home}/temp;
  proxy_cache_path {home}/cache keys_zone=objects:16m max_size=64g inactive=1d use_temp_path=off;
  ssl_certificate {certificate}; ssl_certificate_key {key};
  server {{
    listen 127.0.0.1:{plain}; listen 127.0.0.1:{secure} ssl;
    location / {{
      proxy_pass {upstream}; proxy_http_version 1.1;
      proxy_set_header Host $http_host; proxy_set_header Connection "";
      proxy_cache objects; proxy_cache_key $request_uri; proxy_cache_valid 200 1d;
    }}
  }}
}}
"""
_START_TIMEOUT_S = 10.0
_POLL_S = 0.02


def available() -> bool:
    """Whether there is an nginx to run."""
    return _binary() is not None


class Nginx:
    """`with Nginx(home, url) as front:` answers for *url* at `url` and `secure_url`."""

    def __init__(self, home: Path, upstream_url: str, workers: int = 2) -> None:
        self._home = home
        self._upstream_url = upstream_url
        self._workers = workers
        self._ports = (0, 0)
        self._process: subprocess.Popen[bytes] | None = None
        self.ca_bundle = home / "ca.pem"

    @property
    def url(self) -> str:
        """Plain HTTP."""
        return f"http://127.0.0.1:{self._ports[0]}"

    @property
    def secure_url(self) -> str:
        """TLS, with a certificate that `ca_bundle` vouches for."""
        return f"https://127.0.0.1:{self._ports[1]}"

    @property
    def pid(self) -> int:
        """Process id of the master; its children do the work."""
        assert self._process is not None
        return self._process.pid

    def __enter__(self) -> Self:
        binary = _binary()
        if binary is None:
            raise OSError("nginx is not installed")
        self._home.mkdir(mode=0o700)
        authority = LocalAuthority(self._home)
        self._ports = _free_ports()
        config = _CONFIG.format(
            home=self._home,
            user=self._home.owner(),
            workers=self._workers,
            certificate=authority.ca_bundle,
            key=authority.key_file,
            plain=self._ports[0],
            secure=self._ports[1],
            upstream=self._upstream_url,
        )
        (self._home / "nginx.conf").write_text(config)
        command = [binary, "-c", f"{self._home}/nginx.conf", "-e", f"{self._home}/error.log"]
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        try:
            self._wait_ready(self._process)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        if self._process is not None:
            with self._process as process:
                process.terminate()  # the master takes its workers along

    def warm(self, client: S3Client, bucket: str, names: list[str]) -> None:
        """Have it fetch *names* by *client*, which must sign for `url`."""
        for name in names:
            body = client.get_object(Bucket=bucket, Key=name)["Body"]
            while body.read(1 << 20):
                pass

    def _wait_ready(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + _START_TIMEOUT_S
        while True:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", self._ports[1]), timeout=1.0).close()
                return
            if process.poll() is not None or time.monotonic() > deadline:
                raise OSError(f"nginx did not start: {_last_line(self._home / 'error.log')}")
            time.sleep(_POLL_S)


def _binary() -> str | None:
    return shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")


def _free_ports() -> tuple[int, int]:
    with socket.socket() as plain, socket.socket() as secure:
        plain.bind(("127.0.0.1", 0))
        secure.bind(("127.0.0.1", 0))
        return plain.getsockname()[1], secure.getsockname()[1]


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return lines[-1] if lines else "no output"
