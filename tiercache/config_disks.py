"""What only the disks know of a configuration: links, devices and how much fits.

Asks the file system, which `tiercache.config_checks` never does, so it is run once by whoever
mounts or checks a file, not each time a configuration is read.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from tiercache.config import Config, TierConfig
from tiercache.config_units import format_size
from tiercache.errors import ConfigError


@dataclass(frozen=True, slots=True)
class _Place:
    """One directory of a tier: as written, where links lead, and the device it is or will be on."""

    tier: int
    path: Path
    real: Path
    device: int
    device_bytes: int


def check_disks(config: Config) -> list[str]:
    """Warnings for a person. Raises `ConfigError` with all that cannot work on these disks."""
    places = [_place(index, path) for index, tier in enumerate(config.tiers) for path in tier.paths]
    problems = [*_overlaps(places), *_too_large(config.tiers, places)]
    if problems:
        raise ConfigError(problems)
    return list(_shared(config.tiers, places))


def _place(tier: int, path: Path) -> _Place:
    real = Path(os.path.realpath(path))
    existing = next(above for above in (real, *real.parents) if above.exists())
    facts = os.statvfs(existing)
    return _Place(tier, path, real, existing.stat().st_dev, facts.f_blocks * facts.f_frsize)


def _overlaps(places: list[_Place]) -> Iterator[str]:
    """Directories that are apart by name and one behind their links."""
    for one, two in combinations(places, 2):
        if one.real.is_relative_to(two.real) or two.real.is_relative_to(one.real):
            yield (
                f"tier[{two.tier}].paths: {two.path} leads to {two.real}, which overlaps {one.path}"
                f" of tier[{one.tier}]; directories must be apart"
            )


def _too_large(tiers: tuple[TierConfig, ...], places: list[_Place]) -> Iterator[str]:
    """Capacities that the devices of a tier cannot hold, even empty."""
    for index, tier in enumerate(tiers):
        devices = {place.device: place.device_bytes for place in places if place.tier == index}
        room = sum(max(0, total - tier.reserve_free) for total in devices.values())
        if tier.capacity > room:
            yield (
                f"tier[{index}].capacity: {format_size(tier.capacity)} is more than its disks hold;"
                f" at most {room} bytes, or 0 for what is free"
            )


def _shared(tiers: tuple[TierConfig, ...], places: list[_Place]) -> Iterator[str]:
    """Pairs of tiers that compete for one device."""
    for (first, one), (second, two) in combinations(enumerate(tiers), 2):
        devices = [{place.device for place in places if place.tier == n} for n in (first, second)]
        if devices[0] & devices[1]:
            yield f"tier[{first}] {one.name} and tier[{second}] {two.name} share a device"
