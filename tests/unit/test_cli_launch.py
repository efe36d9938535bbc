"""Starting a holder: what it is given, and every way in which it may answer or not."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tiercache.config import Config, MountConfig, OriginConfig, TierConfig
from tiercache.config_file import config_from_json, config_to_json
from tiercache.errors import MountError
from tiercache_cli import launch

PRELUDE = """
import argparse, json, os, signal, sys
parser = argparse.ArgumentParser()
parser.add_argument("--config-fd", type=int)
parser.add_argument("--ready-fd", type=int)
arguments = parser.parse_args()
config = json.load(open(arguments.config_fd))
place = config["origin"]["url"].removeprefix("file://")
def note(name, text):
    with open(f"{place}/{name}", "w") as file:
        file.write(text)
note("pid", str(os.getpid()))
def say(text):
    os.write(arguments.ready_fd, text.encode())
    os.close(arguments.ready_fd)
"""


@pytest.fixture
def config(tmp_path):
    return Config(
        origin=OriginConfig(url=f"file://{tmp_path}"),
        mount=MountConfig(mountpoint=tmp_path / "mnt", ready_timeout_s=20.0),
        tiers=(TierConfig(paths=(tmp_path / "cache",)),),
    )


@pytest.fixture
def start(config, tmp_path):
    """Start a holder that runs *body*."""

    def start(body, configuration=config):
        script = tmp_path / "holder.py"
        script.write_text(PRELUDE + body)
        launch.start(configuration, (str(script),))

    return start


def is_gone(tmp_path):
    pid = int((tmp_path / "pid").read_text())
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_it_gets_the_configuration_and_a_session_of_its_own(start, config, tmp_path):
    start(
        'facts = {"config": config, "sid": os.getsid(0), "argv": sys.argv,'
        ' "stdin": os.readlink("/proc/self/fd/0"), "fds": os.listdir("/proc/self/fd")}\n'
        'note("facts", json.dumps(facts))\nsay("ready\\n")'
    )
    facts = json.loads((tmp_path / "facts").read_text())
    assert config_from_json(facts["config"]) == config
    assert facts["sid"] != os.getsid(0)
    assert facts["stdin"] == "/dev/null"
    assert str(tmp_path) not in " ".join(facts["argv"][1:])


def test_it_says_why_not(start, tmp_path):
    with pytest.raises(MountError, match=r"^no such bucket$"):
        start('say("no such bucket\\n"); sys.exit(1)')
    assert is_gone(tmp_path)


def test_one_that_says_why_not_and_stays_is_ended(start, tmp_path):
    with pytest.raises(MountError, match=r"^no$"):
        start('say("no\\n"); signal.pause()')
    assert is_gone(tmp_path)


def test_one_that_dies_without_a_word_is_told_of_with_its_log(start, tmp_path):
    with pytest.raises(MountError) as caught:
        start("os.kill(os.getpid(), signal.SIGKILL)")
    text = str(caught.value)
    assert text.startswith("the mount ended before it was ready (signal 9); log: /")
    assert text.endswith("/log")
    assert is_gone(tmp_path)


def test_last_words_of_one_that_cannot_begin_are_shown(start):
    with pytest.raises(MountError, match=r"\(exit status 1\): ImportError: no such thing; log: "):
        start('raise ImportError("no such thing")')


def test_the_log_is_the_configured_one(start, config, tmp_path):
    mount = dataclasses.replace(config.mount, log_file=Path("/var/log/t.log"))
    with pytest.raises(MountError, match=r"log: /var/log/t\.log"):
        start("sys.exit(3)", dataclasses.replace(config, mount=mount))


def test_one_that_never_answers_is_ended(start, config, tmp_path, monkeypatch):
    monkeypatch.setattr(launch, "MARGIN_S", 0.4)
    mount = dataclasses.replace(config.mount, ready_timeout_s=0.1)
    with pytest.raises(MountError, match=r"no answer from the mount within 0\.5 s"):
        start("signal.pause()", dataclasses.replace(config, mount=mount))
    # It may not even have come to write its number down.
    assert not (tmp_path / "pid").exists() or is_gone(tmp_path)


def test_no_descriptor_is_left_open(start):
    before = sorted(os.listdir("/proc/self/fd"))
    start('say("ready\\n")')
    with pytest.raises(MountError):
        start('say("no\\n")')
    assert sorted(os.listdir("/proc/self/fd")) == before


def test_in_place_it_becomes_the_holder(config, tmp_path):
    """`--foreground` replaces the process: same pid, the configuration on a descriptor."""
    script = tmp_path / "holder.py"
    script.write_text(
        "import json, os, sys\n"
        "number = int(sys.argv[sys.argv.index('--config-fd') + 1])\n"
        "print(json.dumps([os.getpid(), json.load(open(number)), sys.argv[3:]]))\n"
    )
    caller = (
        "import json, os, sys\n"
        "from tiercache_cli import launch\n"
        "from tiercache.config_file import config_from_json\n"
        f"launch.HOLDER = ({str(script)!r},)\n"
        "launch.run_in_place(config_from_json(json.load(sys.stdin)))\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", caller], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    output, _ = process.communicate(json.dumps(config_to_json(config)).encode(), timeout=60)
    pid, document, rest = json.loads(output)
    assert pid == process.pid
    assert config_from_json(document) == config
    assert rest == ["--foreground"]
