"""An S3 server in this process: moto on a thread.

It starts in half a second and knows versions, storage classes and every odd key, but it checks no
signature, closes every connection after one reply and is slow. Prefer it for semantics and
`SeaweedServer` for everything that should feel like a server.
"""

from __future__ import annotations

import logging

from moto.server import ThreadedMotoServer

from tiercache.testing.s3server import S3Server, ServerError


class MotoServer(S3Server):
    """`with MotoServer() as server:` runs one until the block ends. Data lives in memory.

    All servers of one process share moto's data, so give buckets names of their own.
    """

    def __init__(self) -> None:
        super().__init__()
        self._server: ThreadedMotoServer | None = None
        self._endpoint_url = ""

    @property
    def endpoint_url(self) -> str:
        """`http://127.0.0.1:PORT`; valid once started."""
        if self._server is None:
            raise ServerError("moto is not running")
        return self._endpoint_url

    def start(self) -> None:
        """Return when requests are answered."""
        # One line per request on the test's stderr helps nobody.
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self._server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        self._server.start()
        host, port = self._server.get_host_and_port()
        self._endpoint_url = f"http://{host}:{port}"

    def stop(self) -> None:
        """End the server; harmless when it does not run."""
        server, self._server = self._server, None
        if server is not None:
            server.stop()
