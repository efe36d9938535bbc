"""What one setting cannot know: rules between settings, each explained to a person.

Runs on sections that were read without a problem, so one mistake is reported once.
"""

from __future__ import annotations

import os.path
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import entry_points
from itertools import combinations
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from tiercache.config import MountConfig, OriginConfig, PrefetchConfig, TierConfig, TransferConfig
from tiercache.config_fields import Problems, unknown
from tiercache.config_units import format_size

POLICY_GROUP: Final = "tiercache.policies"

URL_HINT: Final = "write s3://BUCKET[/PREFIX] or file:///DIRECTORY"


def check_origin(origin: OriginConfig, problems: Problems) -> None:
    """The URL names a bucket or a directory; the endpoint is an HTTP address."""
    if text := _url_problem(origin.url):
        problems.add("origin.url", text)
    endpoint = origin.endpoint_url
    if endpoint is not None and not _is_http(endpoint):
        problems.add(
            "origin.endpoint_url",
            f'"{endpoint}" is not an address; write http://HOST[:PORT] or https://HOST[:PORT]',
        )
    if origin.anonymous and origin.profile is not None:
        problems.add("origin.anonymous", "excludes origin.profile; leave one of them out")


def _url_problem(url: str) -> str | None:
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in ("s3", "file"):
        return f'"{url}" is not a source; {URL_HINT}'
    if scheme == "s3" and not rest.partition("/")[0]:
        return f'"{url}" names no bucket; {URL_HINT}'
    if scheme == "file" and not rest.startswith("/"):
        return f'"{url}" is not an absolute directory; {URL_HINT}'
    return None


def _is_http(endpoint: str) -> bool:
    try:
        parts = urlsplit(endpoint)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def check_transfer(transfer: TransferConfig, problems: Problems) -> None:
    """Reserved connections leave some for the rest; nothing is larger than what holds it."""
    if transfer.connections_reserved >= transfer.connections:
        problems.add(
            "transfer.connections_reserved",
            f"{transfer.connections_reserved} leaves none of {transfer.connections} connections"
            " for prefetching; write less than transfer.connections",
        )
    if transfer.part > transfer.memory:
        problems.add(
            "transfer.part",
            f"{format_size(transfer.part)} does not fit in transfer.memory,"
            f" which is {format_size(transfer.memory)}; write a smaller part, or more memory",
        )
    if transfer.backoff_base_s > transfer.backoff_max_s:
        problems.add("transfer.backoff_base", "is longer than transfer.backoff_max")


def check_prefetch(prefetch: PrefetchConfig, problems: Problems) -> None:
    """The window can grow."""
    if prefetch.window_min > prefetch.window_max:
        problems.add("prefetch.window_min", "is larger than prefetch.window_max")


def check_marks(tiers: Sequence[TierConfig], problems: Problems) -> None:
    """Making room ends somewhere below where it begins."""
    for index, tier in enumerate(tiers):
        if tier.low_water >= tier.high_water:
            problems.add(
                f"tier[{index}].low_water",
                f"{tier.low_water:g} is not below high_water, which is {tier.high_water:g}",
            )


def check_tiers(
    tiers: Sequence[TierConfig], unregistered: Iterable[str], problems: Problems
) -> None:
    """Names and directories are each tier's own; policies exist, some of them *unregistered*."""
    policies = {tier.policy for tier in tiers}
    known = {point.name for point in entry_points(group=POLICY_GROUP)} if policies else set()
    known |= set(unregistered)
    for index, tier in enumerate(tiers):
        if tier.policy not in known:
            problems.add(
                f"tier[{index}].policy", unknown(f'policy "{tier.policy}"', tier.policy, known)
            )
    for (first, one), (second, two) in combinations(enumerate(tiers), 2):
        if one.name == two.name:
            problems.add(
                f"tier[{second}].name", f'"{two.name}" is already the name of tier[{first}]'
            )
    for (first, one_path), (second, two_path) in combinations(_places(tiers), 2):
        if one_path == two_path:
            problems.add(f"tier[{second}].paths", f"{two_path} is already used by tier[{first}]")
        elif _overlap(one_path, two_path):
            problems.add(
                f"tier[{second}].paths",
                f"{two_path} overlaps {one_path} of tier[{first}]; directories must be apart",
            )


def check_places(mount: MountConfig, tiers: Sequence[TierConfig], problems: Problems) -> None:
    """No tier lies in the mounted tree, nor the mount point in a tier: each would wait for itself.

    By name alone: resolving links could already hang on a dead mount, so whoever mounts does that.
    """
    mountpoint = _normal(mount.mountpoint)
    for index, path in _places(tiers):
        if path.is_relative_to(mountpoint):
            problems.add(f"tier[{index}].paths", f"{path} is inside the mount point {mountpoint}")
        elif mountpoint.is_relative_to(path):
            problems.add("mount.mountpoint", f"{mountpoint} is inside the cache directory {path}")


def _places(tiers: Sequence[TierConfig]) -> Iterator[tuple[int, Path]]:
    return ((index, _normal(path)) for index, tier in enumerate(tiers) for path in tier.paths)


def _overlap(one: Path, two: Path) -> bool:
    return one.is_relative_to(two) or two.is_relative_to(one)


def _normal(path: Path) -> Path:
    return Path(os.path.normpath(path))
