"""What only the disks know of a configuration: links, devices and how much fits.

Asks the file system, which `tiercache.config_checks` never does, so it is run once by whoever
mounts, checks a file or reloads one, not each time a configuration is read. A disk that does not
answer is a problem like others, not something to wait for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from tiercache.config import Config, TierConfig
from tiercache.config_units import format_size
from tiercache.disk_probe import TIMEOUT_S, Disk, ask_disks
from tiercache.errors import ConfigError


@dataclass(frozen=True, slots=True)
class _Place:
    """One directory of a tier as written, and the disk behind it."""

    tier: int
    path: Path
    disk: Disk


def check_disks(config: Config, timeout_s: float = TIMEOUT_S) -> list[str]:
    """Warnings for a person. Raises `ConfigError` with all that cannot work on these disks.

    Takes no longer than *timeout_s*, whatever the disks do.
    """
    paths = [(index, path) for index, tier in enumerate(config.tiers) for path in tier.paths]
    places, problems = [], []
    for (index, path), answer in zip(
        paths, ask_disks([p for _, p in paths], timeout_s), strict=True
    ):
        if isinstance(answer, str):
            problems.append(f"tier[{index}].paths: {path}: {answer}")
        else:
            places.append(_Place(index, path, answer))
    problems += [*_overlaps(places), *_too_large(config.tiers, places)]
    if problems:
        raise ConfigError(problems)
    return list(_shared(config.tiers, places))


def _overlaps(places: list[_Place]) -> Iterator[str]:
    """Directories that are apart by name and one behind their links."""
    for one, two in combinations(places, 2):
        real, other = one.disk.real, two.disk.real
        if real.is_relative_to(other) or other.is_relative_to(real):
            yield (
                f"tier[{two.tier}].paths: {two.path} leads to {other}, which overlaps {one.path}"
                f" of tier[{one.tier}]; directories must be apart"
            )


def _too_large(tiers: tuple[TierConfig, ...], places: list[_Place]) -> Iterator[str]:
    """Capacities that the devices of a tier cannot hold, even empty."""
    for index, tier in enumerate(tiers):
        disks = [place.disk for place in places if place.tier == index]
        devices = {disk.device: disk.nbytes for disk in disks}
        room = sum(max(0, total - tier.reserve_free) for total in devices.values())
        if len(disks) == len(tier.paths) and tier.capacity > room:
            yield (
                f"tier[{index}].capacity: {format_size(tier.capacity)} is more than its disks hold;"
                f" at most {room} bytes, or 0 for what is free"
            )


def _shared(tiers: tuple[TierConfig, ...], places: list[_Place]) -> Iterator[str]:
    """Pairs of tiers that compete for one device."""
    for (first, one), (second, two) in combinations(enumerate(tiers), 2):
        devices = [
            {place.disk.device for place in places if place.tier == n} for n in (first, second)
        ]
        if devices[0] & devices[1]:
            yield f"tier[{first}] {one.name} and tier[{second}] {two.name} share a device"
