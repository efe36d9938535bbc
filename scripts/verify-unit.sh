#!/usr/bin/env bash
# Check a systemd unit as it would be installed, with our command in place of the system's.
set -euo pipefail

unit=$1
if ! command -v systemd-analyze >/dev/null; then
    echo "systemd-analyze is not installed: $unit is not checked" >&2
    exit 0
fi
command=$(realpath "$(dirname "$0")/../.venv/bin/tiercache")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
sed -E "s|^(Exec[A-Za-z]*=-?)tiercache |\1$command |" "$unit" >"$folder/$(basename "$unit")"
systemd-analyze verify --man=no "$folder/$(basename "$unit")"
