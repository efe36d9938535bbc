"""The `tiercache` command itself: help, exit statuses, one line for each mistake."""

from __future__ import annotations

import json
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from tiercache.errors import ConfigError, MountError
from tiercache_cli.main import COMMANDS, run, tiercache


def shell(*arguments, name="tiercache_cli"):
    return subprocess.run(
        [sys.executable, "-P", "-m", name, *arguments],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=60,
        check=False,
    )


def test_help_lists_every_command():
    found = shell("--help")
    assert found.returncode == 0
    assert all(f"  {name} " in found.stdout for name in COMMANDS)


def test_help_and_status_start_without_what_they_do_not_need():
    script = """
import json, sys
from tiercache_cli.main import run, tiercache
status = run(tiercache, sys.argv[1:], "tiercache")
loaded = {name.partition(".")[0] for name in sys.modules}
heavy = {"rich", "boto3", "botocore", "trio", "lmdb", "pyfuse3", "numpy"}
print(json.dumps(sorted(loaded & heavy)))
"""
    for arguments in (["--help"], ["mount", "--help"], ["status", "--json"]):
        found = subprocess.run(
            [sys.executable, "-P", "-c", script, *arguments],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        assert json.loads(found.stdout.splitlines()[-1]) == [], arguments


@pytest.mark.parametrize("name", ["mount", "umount", "status", "demo"])
def test_every_command_has_help(name):
    result = CliRunner().invoke(tiercache, [name, "--help"])
    assert result.exit_code == 0, result.output
    assert result.output.startswith(f"Usage: tiercache {name} ")


def test_version():
    assert shell("--version").stdout == "tiercache 0.1.0\n"


def test_unknown_commands_are_usage_errors():
    found = shell("mnt")
    assert found.returncode == 2
    assert "No such command 'mnt'" in found.stderr


def test_every_configuration_problem_is_a_line_of_its_own():
    found = shell("mount", "s4://x", "/mnt/x", "--cache-size", "lots", "-o", "part=0")
    assert found.returncode == 2
    assert found.stdout == ""
    assert found.stderr.splitlines() == [
        "tiercache: -o part: 0B is too small; at least 1MiB",
        'tiercache: --cache-size: "lots" is not understood; write a number of bytes or text like'
        ' "64MiB" or "1TB"',
        'tiercache: SOURCE: "s4://x" is not a source; write s3://BUCKET[/PREFIX] or'
        " file:///DIRECTORY",
    ]


def test_nothing_to_mount():
    found = shell("mount")
    assert found.returncode == 2
    assert found.stderr.splitlines() == [
        "tiercache: origin.url: is missing and has no default",
        "tiercache: mount.mountpoint: is missing and has no default",
    ]


def test_too_many_arguments():
    found = shell("mount", "a", "b", "c")
    assert found.returncode == 2
    assert "expected SOURCE and MOUNTPOINT, got 3 arguments" in found.stderr


@pytest.mark.parametrize(
    ("error", "status", "lines"),
    [
        (MountError("no /dev/fuse"), 1, ["tiercache: no /dev/fuse"]),
        (ConfigError(["a: wrong", "b: wrong"]), 2, ["tiercache: a: wrong", "tiercache: b: wrong"]),
        (KeyboardInterrupt(), 130, ["tiercache: interrupted"]),
    ],
)
def test_exit_statuses(capsys, error, status, lines):
    @click.command()
    def command():
        raise error

    assert run(command, [], "tiercache") == status
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.split() == " ".join(lines).split()


def test_a_bug_keeps_its_traceback():
    @click.command()
    def command():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(command, [], "tiercache")


def test_what_is_not_mounted(tmp_path):
    for command in ("umount", "status"):
        found = shell(command, str(tmp_path))
        assert (found.returncode, found.stdout) == (1, "")
        assert found.stderr == f"tiercache: {tmp_path} is not a tiercache mount\n"
    assert shell("umount", "--if-mounted", str(tmp_path)).returncode == 0
    assert shell("umount").returncode == 2


def test_the_mount_helper_checks_options_without_mounting(tmp_path):
    script = ("-c", "from tiercache_cli.mount_helper import main; main()")
    arguments = ["file:///srv", str(tmp_path), "-f", "-n", "-o"]
    for options, status in (("rw", 2), ("ro,noauto,_netdev,cache_size=1GB", 0)):
        found = subprocess.run(
            [sys.executable, "-P", *script, *arguments, options],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert found.returncode == status, found.stderr
