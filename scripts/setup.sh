#!/usr/bin/env bash
# Everything this repository needs on a fresh Debian or Ubuntu with Python >= 3.11:
#
#   scripts/setup.sh            system packages, .venv, pinned dependencies
#   scripts/setup.sh loaders    and the optional data loaders (torch and others, large)
#
# As root missing system packages are installed, otherwise they are named. A second run compares one
# checksum and ends. PYTHON chooses the interpreter.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf 'setup: %s\n' "$*" >&2; }
die() { say "$@"; exit 1; }

is_recent() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

find_python() {
    local name
    for name in ${PYTHON:-python3 python3.11 python3.12 python3.13 python3.14}; do
        if is_recent "$name"; then command -v "$name"; return; fi
    done
    die "no Python >= 3.11 found (tried: ${PYTHON:-python3, python3.11 to python3.14})"
}

can_make_venv() { "$1" -c 'import ensurepip, venv' 2>/dev/null; }

has_headers() {
    "$1" -c 'import os, sys, sysconfig
sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))'
}

# pyfuse3 is compiled, everything else comes as wheels.
missing_packages() {
    local version
    version=$("$1" -c 'import sys; print("python%d.%d" % sys.version_info[:2])')
    command -v fusermount3 >/dev/null || echo fuse3
    command -v make >/dev/null || echo make
    command -v pkg-config >/dev/null || echo pkg-config
    pkg-config --exists fuse3 2>/dev/null || echo libfuse3-dev
    if ! command -v gcc >/dev/null; then echo gcc; echo libc6-dev; fi
    can_make_venv "$1" || echo "$version-venv"
    has_headers "$1" || echo "$version-dev"
}

install_packages() {
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
        die "these system packages are missing (Debian, Ubuntu: sudo apt-get install $*): $*"
    fi
    say "installing system packages: $*"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}

pip() { .venv/bin/python -m pip --disable-pip-version-check --no-input "$@"; }

# What was installed, so that a change of any input installs again.
fingerprint() { { "$1" -VV; pwd; cat "${@:2}"; } | sha256sum; }

up_to_date() { [ -x .venv/bin/python ] && [ "$(cat ".venv/$1" 2>/dev/null)" = "$2" ]; }

set_up() {
    local python inputs wanted missing
    python=$(find_python)
    missing=$(missing_packages "$python" | xargs)
    if [ -n "$missing" ]; then
        # shellcheck disable=SC2086  # one word per package
        install_packages $missing
    fi
    inputs=(requirements-build.lock requirements.lock pyproject.toml scripts/setup.sh)
    wanted=$(fingerprint "$python" "${inputs[@]}")
    if up_to_date .ready "$wanted"; then return; fi
    if ! is_recent .venv/bin/python || ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
        say "making .venv with $("$python" -V)"
        "$python" -m venv --clear .venv
    fi
    say "installing pinned dependencies (about a minute)"
    # Build tools first: pyfuse3 and this package are then built with them, not with whatever an
    # isolated build would download.
    pip install -q --require-hashes -r requirements-build.lock
    pip install -q --require-hashes --no-build-isolation -r requirements.lock
    pip install -q --no-deps --no-build-isolation -e .
    echo "$wanted" >.venv/.ready
}

set_up_loaders() {
    local wanted
    wanted=$(fingerprint .venv/bin/python requirements-loaders.txt)
    if up_to_date .loaders "$wanted"; then return; fi
    say "installing data loaders (large)"
    pip install -q -r requirements-loaders.txt
    echo "$wanted" >.venv/.loaders
}

set_up
if [ "${1:-}" = loaders ]; then set_up_loaders; fi
