#!/usr/bin/env bash
# Resolve the dependencies anew and pin them by hash. Run with the oldest supported Python.
set -euo pipefail
cd "$(dirname "$0")/.."

export CUSTOM_COMPILE_COMMAND="make lock"

compile() {
    .venv/bin/python -m piptools compile --quiet --generate-hashes --strip-extras \
        --no-emit-index-url --no-emit-find-links "$@"
}

.venv/bin/python -m pip install -q pip-tools==7.6.2
# What builds pyfuse3 and this package.
printf '%s\n' 'hatchling>=1.33,<2' 'editables' 'setuptools>=78.1.1' 'setuptools-scm>=8' 'Cython' |
    compile --allow-unsafe --output-file requirements-build.lock -
# The extra `dev` refers to this package itself, which no lock can hold.
compile --unsafe-package tiercache --extra dev --extra demo \
    --output-file requirements.lock pyproject.toml
# The warning about that at the end of the file.
sed -i '/^# WARNING: /,$ d' requirements.lock
