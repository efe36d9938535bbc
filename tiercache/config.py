"""What can be set: frozen dataclasses that mirror the TOML file section by section.

Sizes are bytes and durations seconds. Nothing below the composition root reads files, argv or the
environment; every bound of the system is a field here. What a value may be stands beside it as
metadata, which `tiercache.config_file` checks and names when it refuses one, and so does whether a
running mount can take on a new one (`live`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tiercache.types import GIB, KIB, MIB

#: Largest number the kernel takes for a uid or gid; the one above it means "unchanged".
ID_MAX = (1 << 32) - 2


def size(low: int = 0, high: int | None = None) -> dict[str, Any]:
    """Metadata of a field in bytes, written as a number or as text like "64MiB"."""
    return {"unit": "bytes", "low": low, "high": high}


def rate(low: int = 0, high: int | None = None) -> dict[str, Any]:
    """Metadata of a field in bytes per second, written as a number or as text like "64MiB/s"."""
    return {"unit": "bytes/s", "low": low, "high": high}


def bounds(low: float = 0, high: float | None = None) -> dict[str, Any]:
    """Metadata of a number from *low* to *high*, both included."""
    return {"low": low, "high": high}


def choice(*names: str) -> dict[str, Any]:
    """Metadata of a text that is one of *names*."""
    return {"choices": names}


def live(metadata: dict[str, Any] | None = None) -> dict[str, Any]:
    """*metadata* of a field that `tiercache reload` applies to a running mount."""
    return {**(metadata or {}), "live": True}


@dataclass(frozen=True, slots=True, kw_only=True)
class OriginConfig:
    """`[origin]`: where the truth is. `url` is `s3://BUCKET[/PREFIX]` or `file:///DIR`."""

    #: What is mounted: a bucket, a prefix in it, or a directory.
    url: str
    #: An S3 server that is not AWS, as http://HOST[:PORT] or https://HOST[:PORT].
    endpoint_url: str | None = None
    #: None: found out by asking.
    region: str | None = None
    #: Profile of ~/.aws/config. None: the usual chain of credentials.
    profile: str | None = None
    #: Read a public bucket without credentials.
    anonymous: bool = False
    #: None: chosen (path style for IPs, dotted bucket names and custom endpoints).
    path_style: bool | None = None
    #: Pay for requests to a bucket that asks its readers to.
    requester_pays: bool = False
    #: Certificates to trust instead of the system's.
    ca_bundle: Path | None = None
    #: What one GET costs, in any currency; `tiercache warm` says what a fill will cost.
    price_per_get: float = field(default=0.0, metadata=bounds(0))
    #: What 10^9 bytes out of the store cost, in the same currency.
    price_per_gb: float = field(default=0.0, metadata=bounds(0))


@dataclass(frozen=True, slots=True, kw_only=True)
class MountConfig:
    """`[mount]`: what the tree looks like and how the kernel talks to us."""

    #: Directory on which the tree appears.
    mountpoint: Path
    #: Only kernel can pass reads through; auto: kernel, or libfuse where that is not possible.
    driver: str = field(default="auto", metadata=choice("auto", "kernel", "libfuse"))
    #: Let other users in, as permissions say.
    allow_other: bool = False
    #: Mount over a directory that is not empty and hide what it holds.
    nonempty: bool = False
    #: None: the mounting user.
    uid: int | None = field(default=None, metadata=bounds(0, ID_MAX))
    #: None: the group of the mounting user.
    gid: int | None = field(default=None, metadata=bounds(0, ID_MAX))
    #: Permission bits that are taken away.
    umask: int = field(default=0o022, metadata={"unit": "octal", "low": 0, "high": 0o777})
    #: immutable never asks again, ttl when a name's time is over, strict on each open.
    consistency: str = field(default="ttl", metadata=choice("immutable", "ttl", "strict"))
    #: How long names and sizes are believed.
    metadata_ttl_s: float = field(default=60.0, metadata=live(bounds(0)))
    #: How long absence is believed.
    negative_ttl_s: float = field(default=5.0, metadata=live(bounds(0)))
    #: Hot files are read by the kernel alone (Linux 6.9, root).
    passthrough: bool = True
    #: Kernel readahead; needs root to raise.
    readahead: int = field(default=4 * MIB, metadata=live(size(0, 1 * GIB)))
    #: Kernel requests in flight.
    max_background: int = field(default=64, metadata=bounds(1, 65535))
    #: Passthrough registrations kept after the last close, each an open file in the kernel.
    backing_max: int = field(default=4096, metadata=bounds(1))
    #: What readers get to finish when the mount is stopped.
    stop_timeout_s: float = field(default=8.0, metadata=live(bounds(0.1, 3600)))
    #: A mount that does not answer by then has failed.
    ready_timeout_s: float = field(default=60.0, metadata=bounds(0.1, 3600))
    #: None: `log` in the runtime directory of the mount.
    log_file: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TierConfig:
    """`[[tier]]`: one local store, hottest first."""

    #: What reports call it.
    name: str = "cache"
    #: Directories that belong to tiercache alone; files are spread over them.
    paths: tuple[Path, ...]
    #: 0: what the disk has free at start, less `reserve_free`.
    capacity: int = field(default=0, metadata=live(size(0)))
    #: The disk is never filled beyond this.
    reserve_free: int = field(default=1 * GIB, metadata=live(size(0)))
    #: Who may enter and who leaves when it is full; pin: nobody leaves.
    policy: str = "adaptive"
    #: Above this share of the capacity the policy's victims leave ahead of need.
    high_water: float = field(default=0.95, metadata=live(bounds(0.01, 1)))
    #: At this share of the capacity that ends.
    low_water: float = field(default=0.9, metadata=live(bounds(0, 1)))
    #: Reads, and writes, at a time that its disks get; 0: no limit. A spinning disk wants few.
    io_slots: int = field(default=0, metadata=bounds(0, 4096))
    #: Bytes a day, for flash wears out: newcomers that would exceed it bypass it; 0: no limit.
    write_budget_per_day: int = field(default=0, metadata=live(size(0)))
    #: boot: on first use per boot. always: on each read, which rules passthrough out.
    verify: str = field(default="boot", metadata=choice("boot", "always"))


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleConfig:
    """`[[rule]]`: what is different for some files; of several that match, the first one speaks."""

    #: What `tiercache where` and `status` call it.
    name: str
    #: Below the mount's root: `*`, `?`, `[...]` within a name, `**` any directories. Not set: all.
    path: str | None = None
    #: Endings of names, as ".idx"; one is enough. Empty: all.
    suffixes: tuple[str, ...] = ()
    #: Smaller files are not meant.
    min_size: int = field(default=0, metadata=size(0))
    #: Larger files are not meant.
    max_size: int | None = field(default=None, metadata=size(0))
    #: Whether a tier may take them; false: they are always read from the origin.
    admit: bool = True
    #: Keep what was used once, in the hottest tier with room left for pins.
    pin: bool = False
    #: The most they may take of a tier, as {nvme = "1TiB"}; what exceeds it goes to the next tier.
    share: tuple[tuple[str, int], ...] = field(default=(), metadata={"unit": "sizes"})


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyConfig:
    """`[policy.NAME]`: parameters of one policy; `entry_point` when it is not a registered one."""

    name: str
    #: "package.module:Class" of a policy that is not registered.
    entry_point: str | None = None
    #: Names and values, as the policy declares them.
    params: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferConfig:
    """`[transfer]`: the bounds of everything that moves between origin and tiers."""

    #: Connections to the origin, at most.
    connections: int = field(default=64, metadata=live(bounds(1, 4096)))
    #: How far an origin that throttles or slows down makes us reduce them, if they are more.
    connections_min: int = field(default=8, metadata=live(bounds(1, 4096)))
    #: Kept for metadata and demand.
    connections_reserved: int = field(default=4, metadata=live(bounds(0)))
    #: Bytes per second that all bodies together may take; 0: no limit.
    bandwidth: int = field(default=0, metadata=live(rate(0)))
    #: Requests per second; 0: no limit.
    requests_per_s: int = field(default=0, metadata=live(bounds(0)))
    #: GETs in the long run that may be sent a second time because the first is slow; 0: none.
    hedge_budget: float = field(default=0.03, metadata=live(bounds(0, 1)))
    #: No GET counts as slow before this time.
    hedge_delay_min_s: float = field(default=0.05, metadata=live(bounds(0, 3600)))
    #: Buffers in flight.
    memory: int = field(default=256 * MIB, metadata=size(4 * MIB))
    #: Largest ranged GET.
    part: int = field(default=16 * MIB, metadata=size(1 * MIB, 5 * GIB))
    #: Bodies up to this size are received on the loop; larger ones by pool threads.
    inline_body: int = field(default=256 * KIB, metadata=size(0))
    #: Threads that receive bodies.
    threads: int = field(default=8, metadata=bounds(1, 256))
    #: Tries per request.
    attempts: int = field(default=6, metadata=live(bounds(1, 100)))
    #: Wait before the first retry; doubles each time.
    backoff_base_s: float = field(default=0.1, metadata=live(bounds(0)))
    #: Longest wait between tries.
    backoff_max_s: float = field(default=8.0, metadata=live(bounds(0, 3600)))
    #: Retries per request in the long run.
    retry_budget: float = field(default=0.5, metadata=live(bounds(0, 100)))
    #: Longest wait for a connection.
    connect_timeout_s: float = field(default=5.0, metadata=live(bounds(0.1, 600)))
    #: Longest time without a single byte.
    stall_timeout_s: float = field(default=15.0, metadata=live(bounds(0.1, 3600)))
    #: Longest time for a request with all its retries.
    deadline_s: float = field(default=120.0, metadata=live(bounds(0.1, 86400)))


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefetchConfig:
    """`[prefetch]`: what is fetched before it is asked for."""

    #: How far ahead of a new stream is fetched.
    window_min: int = field(default=2 * MIB, metadata=live(size(1 * MIB)))
    #: How far ahead of a long stream is fetched.
    window_max: int = field(default=128 * MIB, metadata=live(size(1 * MIB)))
    #: A jump this far ahead is still sequential.
    skip_forward: int = field(default=16 * MIB, metadata=live(size(0)))
    #: A jump this far back is still sequential.
    skip_back: int = field(default=1 * MIB, metadata=live(size(0)))
    #: Files whose streams are followed.
    streams_max: int = field(default=1024, metadata=bounds(1))
    #: What all streams together may have on its way; each gets an equal share.
    budget: int = field(default=192 * MIB, metadata=live(size(1 * MIB)))
    #: Read from the end along with the start of archives and tables, whose index is there; 0: not.
    tail: int = field(default=64 * KIB, metadata=live(size(0, 1 * GIB)))
    #: Files fetched ahead when a directory is read in the order of its names; 0: none.
    files_ahead: int = field(default=64, metadata=live(bounds(0, 4096)))
    #: Fill free space of the tiers with the rest of what is being read, when nothing else is due.
    background_fill: bool = field(default=False, metadata=live())
    #: An ordered list of what will be read, followed from the start; see `tiercache plan`.
    plan_file: Path | None = None
    #: What is fetched ahead of the readers of a plan.
    plan_window: int = field(default=256 * MIB, metadata=size(1 * MIB))
    #: Entries a plan may have; each takes about 25 bytes, and its path once.
    plan_entries: int = field(default=20_000_000, metadata=bounds(1))


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatConfig:
    """`[heat]`: how often datasets and files are used, as an average that forgets."""

    #: After this time without use an item counts half; 0.25 to 1 epoch of the hot set is right.
    half_life_s: float = field(default=21600.0, metadata=live(bounds(1, 365 * 86400)))
    #: A dataset is what lies below one directory of this depth; 0: all is one dataset.
    group_depth: int = field(default=2, metadata=bounds(0, 64))


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveConfig:
    """`[move]`: what is moved between tiers in the background."""

    #: How often moves are planned.
    interval_s: float = field(default=30.0, metadata=live(bounds(0.1, 86400)))
    #: Bytes per second of all moves together; 0: no limit.
    bandwidth: int = field(default=500 * MIB, metadata=live(rate(0)))
    #: Files moved at once.
    concurrency: int = field(default=4, metadata=live(bounds(1, 256)))
    #: How much hotter than the coldest resident a file must be to take its place.
    margin: float = field(default=1.5, metadata=live(bounds(1, 1000)))
    #: What came from another tier does not leave again before this time.
    residence_s: float = field(default=300.0, metadata=live(bounds(0, 365 * 86400)))
    #: When readers make moves wait.
    backoff: str = field(
        default="any_user_io", metadata=live(choice("any_user_io", "same_device", "never"))
    )
    #: Moves are suspended when this share of at least `suspend_error_min` of them failed.
    suspend_error_pct: int = field(default=50, metadata=live(bounds(1, 100)))
    #: Moves that must have been tried before their errors count.
    suspend_error_min: int = field(default=100, metadata=live(bounds(1)))
    #: Log what would be moved, and move nothing.
    dry_run: bool = field(default=False, metadata=live())


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogConfig:
    """`[catalog]`: the LMDB index."""

    #: Address space, grows when full; the file is as large as its content.
    map_size: int = field(default=16 * GIB, metadata=size(1 * MIB, 1 << 46))
    #: How often what was learned is written.
    flush_interval_s: float = field(default=0.25, metadata=bounds(0.001, 3600))
    #: How often what was written is made safe on disk.
    sync_interval_s: float = field(default=10.0, metadata=bounds(0.1, 86400))
    #: A new catalog is not begun on a disk with less free space than this.
    free_min: int = field(default=64 * MIB, metadata=size(0, 1 << 46))


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Everything a mount needs. Tier paths are directories that belong to tiercache alone."""

    origin: OriginConfig
    mount: MountConfig
    tiers: tuple[TierConfig, ...]
    transfer: TransferConfig = field(default_factory=TransferConfig)
    rules: tuple[RuleConfig, ...] = ()
    policies: tuple[PolicyConfig, ...] = ()
    heat: HeatConfig = field(default_factory=HeatConfig)
    move: MoveConfig = field(default_factory=MoveConfig)
    prefetch: PrefetchConfig = field(default_factory=PrefetchConfig)
    catalog: CatalogConfig = field(default_factory=CatalogConfig)
    #: Least severe messages that are logged.
    log_level: str = field(
        default="info", metadata=live(choice("debug", "info", "warning", "error"))
    )

    @property
    def cache_dir(self) -> Path:
        """Home of the catalog: the first path of the first tier."""
        return self.tiers[0].paths[0]
