"""`python -m tiercache_cli` is `tiercache`."""

from __future__ import annotations

from tiercache_cli.main import main

main()
