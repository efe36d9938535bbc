"""The plain parallel client reads what is there, or says so."""

import socketserver
import threading

import pytest

from bench.client import Get, ParallelClient, ReplyError
from tiercache.testing.data import check, pattern

SIZE = 1_000_003


class Handler(socketserver.StreamRequestHandler):
    """Answers GETs of `pattern`; the path says what to do wrong."""

    def handle(self):
        while line := self.rfile.readline():
            path = line.split()[1]
            start, end = 0, SIZE - 1
            while (field := self.rfile.readline().strip()) != b"":
                if field.lower().startswith(b"range:"):
                    start, end = map(int, field.partition(b"=")[2].split(b"-"))
            self.answer(path, start, end)

    def answer(self, path, start, end):
        body = pattern(start, end + 1 - start)
        status = b"404 Not Found" if path == b"/missing" else b"206 Partial Content"
        length = b"" if path == b"/chunked" else b"content-length: %d\r\n" % len(body)
        if path == b"/short":
            body = body[:-1]
        self.wfile.write(b"HTTP/1.1 %s\r\n%s\r\n%s" % (status, length, body))
        if path == b"/short":
            self.finish()
            self.request.close()


@pytest.fixture
def url():
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def get(path, start, length):
    field = f"Range: bytes={start}-{start + length - 1}\r\n"
    return Get(f"GET {path} HTTP/1.1\r\n{field}\r\n".encode(), 206, start, length)


def test_ranges_by_several_connections_make_the_whole(url):
    gets = [get("/x", start, min(70_000, SIZE - start)) for start in range(0, SIZE, 70_000)]
    seen = []

    def sink(offset, body):
        check(body, offset)
        seen.append((offset, len(body)))

    with ParallelClient(url, 3, 70_000) as client:
        for _ in range(2):
            assert client.fetch(gets, sink) == SIZE
    assert sorted(seen) == sorted([(get.offset, get.length) for get in gets] * 2)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/missing", "404"),
        ("/chunked", "no Content-Length"),
        ("/short", "closed"),
    ],
)
def test_what_is_not_the_body_is_refused(url, path, message):
    with ParallelClient(url, 1, 1000) as client, pytest.raises(ReplyError, match=message):
        client.fetch([get(path, 0, 1000)])


def test_a_reply_of_another_length_is_refused(url):
    wrong = Get(get("/x", 0, 500).request, 206, 0, 1000)
    with ParallelClient(url, 1, 1000) as client, pytest.raises(ReplyError, match="500 bytes"):
        client.fetch([wrong])
