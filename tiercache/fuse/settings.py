"""What the holder reads of the configuration, which travels through it as plain JSON.

The holder leaves the rest unparsed: it is the worker's, and parsing it would cost memory for as
long as the mount lives. Standard library only.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from tiercache.fuse.mountpoint import canonical, runtime_dir


class Settings(NamedTuple):
    """`config` is all of it, with absolute paths, as the worker gets it.

    `given` is what it was made from, for the worker to make it again.
    """

    config: dict[str, Any]
    given: dict[str, Any] | None
    mountpoint: Path
    source: str
    cache_dirs: tuple[Path, ...]
    log_file: Path | None
    runtime: Path
    driver: str
    allow_other: bool
    nonempty: bool
    passthrough: bool
    readahead: int
    max_background: int
    ready_timeout_s: float
    stop_timeout_s: float


def read_settings(config: dict[str, Any]) -> Settings:
    """Pick the holder's part out of `dataclasses.asdict(Config)` with paths as text.

    Beside the sections there may be `given`, see `tiercache.config_given`.
    """
    config, given = {**config}, config.get("given")
    config.pop("given", None)
    mount = config["mount"]
    mountpoint = canonical(Path(mount["mountpoint"]))
    tiers = [
        {**tier, "paths": [str(Path(path).absolute()) for path in tier["paths"]]}
        for tier in config["tiers"]
    ]
    log_file = mount["log_file"]
    return Settings(
        config={**config, "mount": {**mount, "mountpoint": str(mountpoint)}, "tiers": tiers},
        given=given,
        mountpoint=mountpoint,
        source=config["origin"]["url"].rstrip("/"),
        cache_dirs=tuple(Path(path) for tier in tiers for path in tier["paths"]),
        log_file=Path(log_file).absolute() if log_file else None,
        runtime=runtime_dir(mountpoint),
        driver=mount["driver"],
        allow_other=mount["allow_other"],
        nonempty=mount["nonempty"],
        passthrough=mount["passthrough"],
        readahead=mount["readahead"],
        max_background=mount["max_background"],
        ready_timeout_s=mount["ready_timeout_s"],
        stop_timeout_s=mount["stop_timeout_s"],
    )
