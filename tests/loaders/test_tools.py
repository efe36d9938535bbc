"""The tools people copy, pack, search and measure with (D08, J03)."""

import hashlib
import io
import os
import shutil
import subprocess
import tarfile

import pytest

pytestmark = pytest.mark.mount


def run(*command, **options):
    done = subprocess.run(
        [os.fspath(part) for part in command], capture_output=True, timeout=100, **options
    )
    assert (done.returncode, done.stderr) == (0, b"")
    return done.stdout


def tree(path):
    return {
        str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()
    }


def test_d08_copyfile(root, stored, tmp_path):
    """sendfile and copy_file_range, at every size."""
    for name, body in stored.below("plain").items():
        shutil.copyfile(root / "plain" / name, tmp_path / "copy")
        assert (tmp_path / "copy").read_bytes() == body, name


def test_copytree(root, stored, tmp_path):
    shutil.copytree(root / "plain", tmp_path / "copy")
    assert tree(tmp_path / "copy") == stored.below("plain")


@pytest.mark.parametrize("flags", [["-r"], ["-a"], ["-r", "--reflink=auto", "--sparse=always"]])
def test_d08_cp(root, stored, tmp_path, flags):
    run("cp", *flags, root / "plain", tmp_path / "copy")
    assert tree(tmp_path / "copy") == stored.below("plain")


def test_d08_cat(root, stored):
    for name, body in stored.below("plain").items():
        assert run("cat", root / "plain" / name) == body, name


def test_tar(root, stored):
    packed = run("tar", "-C", root, "-cf", "-", "plain")
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        found = {
            member.name.removeprefix("plain/"): tar.extractfile(member).read()
            for member in tar
            if member.isfile()
        }
    assert found == stored.below("plain")


def test_rsync(root, stored, tmp_path):
    if shutil.which("rsync") is None:
        pytest.skip("rsync is not installed")
    for _ in range(2):  # the second run compares sizes and times, and finds nothing to do
        listed = run("rsync", "-a", "--itemize-changes", f"{root}/plain/", f"{tmp_path}/copy/")
    assert listed == b""
    assert tree(tmp_path / "copy") == stored.below("plain")


def test_sha256sum(root, stored):
    names = sorted(stored.below("plain"))
    out = run("sha256sum", *(root / "plain" / name for name in names))
    digests = [line.split()[0].decode() for line in out.splitlines()]
    bodies = stored.below("plain")
    assert digests == [hashlib.sha256(bodies[name]).hexdigest() for name in names]


def test_find(root, stored):
    out = run("find", root / "plain", "-type", "f", "-printf", "%P %s\\n").decode()
    found = dict(line.rsplit(" ", 1) for line in out.splitlines())
    assert found == {name: str(len(body)) for name, body in stored.below("plain").items()}


def test_grep(root, stored):
    needle = stored.objects["plain/many/1/f001"][:64]
    pattern = "".join(f"\\x{byte:02x}" for byte in needle)
    out = run("grep", "-rlaP", pattern, root / "plain/many", env={**os.environ, "LC_ALL": "C"})
    assert out.decode().splitlines() == [str(root / "plain/many/1/f001")]


def test_du(root, stored):
    bodies = stored.below("plain").values()
    out = run("du", "--apparent-size", "--block-size=1", "-a", root / "plain").decode()
    sizes = {line.split("\t")[1]: int(line.split("\t")[0]) for line in out.splitlines()}
    files = [size for path, size in sizes.items() if os.path.isfile(path)]
    assert sum(files) == sum(map(len, bodies))
    blocks = run("du", "--block-size=512", "-sS", root / "plain").decode().split()[0]
    top = [body for name, body in stored.below("plain").items() if "/" not in name]
    assert int(blocks) >= sum(-(-len(body) // 512) for body in top)


def test_j03_df(root):
    total, *_ = run("df", "--output=size", "--block-size=1", root).decode().split()[1:]
    assert 0 < int(total) < 1 << 63
    assert run("df", "-i", root)
    assert shutil.disk_usage(root).total == int(total)
    assert os.statvfs(root).f_namemax == 255


@pytest.mark.parametrize("command", [["touch", "new"], ["rm", "plain/00000001.bin"]])
def test_writing_is_refused_as_on_any_read_only_file_system(root, command):
    done = subprocess.run(
        [command[0], str(root / command[1])], capture_output=True, timeout=100, check=False
    )
    assert done.returncode == 1
    assert b"Read-only file system" in done.stderr
