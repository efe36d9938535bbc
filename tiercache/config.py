"""What can be set: frozen dataclasses that mirror the TOML file section by section.

Sizes are bytes and durations seconds. Nothing below the composition root reads files, argv or the
environment; every bound of the system is a field here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from tiercache.types import GIB, KIB, MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class OriginConfig:
    """`[origin]`: where the truth is. `url` is `s3://BUCKET[/PREFIX]` or `file:///DIR`."""

    url: str
    endpoint_url: str | None = None
    region: str | None = None
    profile: str | None = None
    anonymous: bool = False
    #: None: chosen (path style for IPs, dotted bucket names and custom endpoints).
    path_style: bool | None = None
    requester_pays: bool = False
    ca_bundle: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MountConfig:
    """`[mount]`: what the tree looks like and how the kernel talks to us."""

    mountpoint: Path
    driver: str = "auto"  # auto | kernel | libfuse
    allow_other: bool = False
    uid: int | None = None  # None: the mounting user
    gid: int | None = None
    umask: int = 0o022
    consistency: str = "ttl"  # immutable | ttl | strict
    metadata_ttl_s: float = 60.0
    negative_ttl_s: float = 5.0
    passthrough: bool = True
    readahead: int = 4 * MIB  # kernel readahead, needs root to raise
    max_background: int = 64
    #: Passthrough registrations kept after the last close, each an open file in the kernel.
    backing_max: int = 4096
    stop_timeout_s: float = 8.0
    ready_timeout_s: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TierConfig:
    """`[[tier]]`: one local store, hottest first."""

    name: str = "cache"
    paths: tuple[Path, ...]
    capacity: int = 0  # 0: what the disk has free at start, less reserve_free
    reserve_free: int = 1 * GIB
    policy: str = "pin"
    verify: str = "boot"  # boot: first use per boot | always: each read, no passthrough


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferConfig:
    """`[transfer]`: the bounds of everything that moves between origin and tiers."""

    connections: int = 32
    connections_reserved: int = 4  # for metadata and demand
    memory: int = 256 * MIB  # buffers in flight
    part: int = 8 * MIB  # largest ranged GET
    #: Bodies up to this size are received on the loop; larger ones by pool threads.
    inline_body: int = 256 * KIB
    threads: int = 8
    attempts: int = 6
    backoff_base_s: float = 0.1
    backoff_max_s: float = 8.0
    retry_budget: float = 0.5  # retries per request in the long run
    connect_timeout_s: float = 5.0
    stall_timeout_s: float = 15.0
    deadline_s: float = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefetchConfig:
    """`[prefetch]`: sequential readahead."""

    window_min: int = 2 * MIB
    window_max: int = 64 * MIB
    skip_forward: int = 16 * MIB
    skip_back: int = 1 * MIB
    streams_max: int = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogConfig:
    """`[catalog]`: the LMDB index."""

    map_size: int = 16 * GIB  # address space, grows when full; the file is as large as its content
    flush_interval_s: float = 0.25
    sync_interval_s: float = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Everything a mount needs. Tier paths are directories that belong to tiercache alone."""

    origin: OriginConfig
    mount: MountConfig
    tiers: tuple[TierConfig, ...]
    transfer: TransferConfig = field(default_factory=TransferConfig)
    prefetch: PrefetchConfig = field(default_factory=PrefetchConfig)
    catalog: CatalogConfig = field(default_factory=CatalogConfig)
    log_level: str = "info"

    @property
    def cache_dir(self) -> Path:
        """Home of the catalog: the first path of the first tier."""
        return self.tiers[0].paths[0]
