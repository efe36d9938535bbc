"""The control socket: answers, bounds, hostile clients, and clients of a worker that hangs."""

from __future__ import annotations

import json
import os
import socket
import stat
import threading
from functools import partial

import pytest
import trio

from tiercache.control.client import ask
from tiercache.control.server import ControlLimits, serve_control
from tiercache.errors import ControlError, ControlTimeoutError, ObjectNotFoundError


async def _later():
    await trio.lowlevel.checkpoint()
    return {"later": True}


def _bug():
    raise ZeroDivisionError


def _domain_error():
    raise ObjectNotFoundError("no such object")


OPERATIONS = {
    "status": lambda: {"n": 1, "text": "é"},
    "later": _later,
    "bug": _bug,
    "missing": _domain_error,
    "unserialisable": lambda: object(),
}


@pytest.fixture
def path(tmp_path):
    # Longer than a Unix address may be.
    directory = tmp_path / ("d" * 120)
    directory.mkdir()
    return directory / "control.sock"


@pytest.fixture
async def server(path, nursery):
    limits = ControlLimits(request_bytes=1024, connections=3, idle_s=5)
    await nursery.start(serve_control, path, OPERATIONS, limits)
    return path


async def _ask(path, operation):
    return await trio.to_thread.run_sync(ask, path, operation)


async def _connect(path):
    descriptor = os.open(path.parent, os.O_PATH)
    try:
        return await trio.open_unix_socket(f"/proc/self/fd/{descriptor}/{path.name}")
    finally:
        os.close(descriptor)


async def _line(stream):
    data = b""
    while not data.endswith(b"\n"):
        chunk = await stream.receive_some(4096)
        if not chunk:
            return None
        data += chunk
    return json.loads(data)


async def test_answers_plain_and_async_operations(server):
    assert await _ask(server, "status") == {"n": 1, "text": "é"}
    assert await _ask(server, "later") == {"later": True}


async def test_only_the_owner_may_connect(server):
    assert stat.S_IMODE(server.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("operation", "text"),
    [
        ("nonsense", "unknown operation; known: bug, later, missing, status, unserialisable"),
        ("missing", "no such object"),
    ],
)
async def test_says_why_an_operation_failed_and_lives_on(server, operation, text):
    with pytest.raises(ControlError, match=text):
        await _ask(server, operation)
    assert await _ask(server, "status") == {"n": 1, "text": "é"}


@pytest.mark.allow_warnings
@pytest.mark.parametrize("operation", ["bug", "unserialisable"])
async def test_a_bug_in_an_operation_is_logged_and_survived(server, caplog, operation):
    with pytest.raises(ControlError, match="internal error"):
        await _ask(server, operation)
    assert [record.exc_info is not None for record in caplog.records] == [True]
    assert await _ask(server, "status") == {"n": 1, "text": "é"}


async def test_several_requests_on_one_connection(server):
    async with await _connect(server) as stream:
        await stream.send_all(b'{"op": "later"}\n{"op": "sta')
        assert await _line(stream) == {"ok": True, "result": {"later": True}}
        await stream.send_all(b'tus"}\n')
        assert (await _line(stream))["ok"] is True


@pytest.mark.parametrize(
    "garbage", [b"\n", b"[1]\n", b'{"op": 5}\n', b"\xff\xfe\n", b"[" * 1000 + b"\n"]
)
async def test_garbage_is_refused(server, garbage):
    async with await _connect(server) as stream:
        await stream.send_all(garbage)
        assert (await _line(stream))["ok"] is False


async def test_a_request_without_end_is_cut_off(server):
    async with await _connect(server) as stream:
        await stream.send_all(b"x" * 2000)
        assert await _line(stream) == {"ok": False, "error": "the request is too long"}
        assert await _line(stream) is None


async def test_connections_are_bounded(server):
    async with (
        await _connect(server) as one,
        await _connect(server) as two,
        await _connect(server) as three,
    ):
        for stream in (one, two, three):
            await stream.send_all(b'{"op": "status"}\n')
            assert (await _line(stream))["ok"] is True
        async with await _connect(server) as four:
            assert await _line(four) == {"ok": False, "error": "too many connections"}


async def test_idle_connections_end(path, nursery):
    await nursery.start(serve_control, path, OPERATIONS, ControlLimits(idle_s=0.01))
    async with await _connect(path) as stream:
        assert await _line(stream) is None


async def test_replaces_the_socket_of_a_killed_worker(path, nursery):
    directory = os.open(path.parent, os.O_PATH)
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(f"/proc/self/fd/{directory}/{path.name}")
    os.close(directory)
    with pytest.raises(ControlError, match="refused"):
        await _ask(path, "status")
    await nursery.start(serve_control, path, OPERATIONS)
    assert await _ask(path, "status") == {"n": 1, "text": "é"}
    assert [item.name for item in path.parent.iterdir()] == [path.name]


async def test_the_socket_goes_with_the_server(path):
    async with trio.open_nursery() as nursery:
        await nursery.start(serve_control, path, OPERATIONS)
        nursery.cancel_scope.cancel()
    assert not path.exists()


def test_nobody_listens(tmp_path):
    with pytest.raises(ControlError, match="No such file"):
        ask(tmp_path / "control.sock", "status")


@pytest.fixture
def peer(tmp_path):
    """Starts a peer that answers with given bytes and then holds the connection or closes it."""
    path = tmp_path / "peer.sock"
    done = threading.Event()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.fspath(path))
        listener.listen()

        def answer(data, hold):
            connection, _ = listener.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(data)
                if hold:
                    done.wait(30)

        threads = []

        def start(data, hold):
            threads.append(threading.Thread(target=partial(answer, data, hold)))
            threads[-1].start()
            return path

        yield start
        done.set()
        for thread in threads:
            thread.join()


@pytest.mark.parametrize("sent", [b"", b'{"ok": tr'])
def test_a_hung_worker_costs_no_more_than_the_time_limit(peer, sent):
    with pytest.raises(ControlTimeoutError, match="no answer within"):
        ask(peer(sent, True), "status", timeout_s=0.05)


@pytest.mark.parametrize("sent", [b"", b'{"ok": tr', b"[]\n", b'{"ok": true}\n', b"\xff\n"])
def test_an_answer_that_is_cut_off_is_not_believed(peer, sent):
    with pytest.raises(ControlError, match="cut off"):
        ask(peer(sent, False), "status")
