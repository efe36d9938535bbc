"""What happened in an epoch: the loader's figures and two looks at the mount's status. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

#: Differences of one kind that are named; a person needs no thousand lines.
_PROBLEMS_NAMED = 3


@dataclass(frozen=True, slots=True)
class Counters:
    """The counters of a mount that the demo shows, at one moment; all only grow.

    `origin_bytes` came over the network, `tier_bytes` from a local tier through the daemon, and
    `answered_bytes` is everything the daemon gave to the kernel, whatever it came from.
    """

    origin_bytes: int = 0
    tier_bytes: int = 0
    answered_bytes: int = 0
    opens: int = 0
    passthrough_opens: int = 0

    @classmethod
    def of(cls, status: Mapping[str, Any]) -> Counters:
        """The counters in the JSON of `tiercache status MOUNTPOINT`."""
        counters = status["counters"]
        return cls(
            origin_bytes=counters["origin_bytes"],
            tier_bytes=sum(tier["hit_bytes"] for tier in status["tiers"]),
            answered_bytes=counters["bytes_read"],
            opens=counters["opens"],
            # Only the kernel driver can pass a read through, so only it counts them.
            passthrough_opens=status["worker_facts"].get("passthrough_opens", 0),
        )

    def since(self, earlier: Counters) -> Counters:
        """The difference to an earlier moment."""
        before = asdict(earlier)
        return Counters(**{name: count - before[name] for name, count in asdict(self).items()})


@dataclass(frozen=True, slots=True)
class Epoch:
    """One line of the demo's table."""

    number: int
    samples: int
    bytes: int
    seconds: float
    counters: Counters

    @property
    def kernel_bytes(self) -> int:
        """Bytes that reached the loader without the daemon: passed through, or page cache.

        The kernel reads ahead, so that a cold epoch may take more from the daemon than the loader
        read; then nothing is left for this.
        """
        return max(0, self.bytes - self.counters.answered_bytes)

    def as_json(self) -> dict[str, Any]:
        """The line for scripts; rates are per second."""
        return {
            "epoch": self.number,
            "samples": self.samples,
            "bytes": self.bytes,
            "seconds": self.seconds,
            "samples_per_s": self.samples / self.seconds,
            "bytes_per_s": self.bytes / self.seconds,
            "kernel_bytes": self.kernel_bytes,
            **asdict(self.counters),
        }


@dataclass(slots=True)
class Outcome:
    """Everything the demo found out. `problems` are differences in the data, one line each."""

    source: str
    mountpoint: str
    files: int
    samples: int
    bytes: int
    reader: str = ""
    driver: str = ""
    passthrough: bool = False
    passthrough_reason: str | None = None
    epochs: list[Epoch] = field(default_factory=list)
    checked_bytes: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether every byte was what was stored."""
        return not self.problems

    def describe_mount(self, status: Mapping[str, Any]) -> None:
        """Take note of how it is mounted."""
        self.driver = status["driver"]
        self.passthrough = bool(status["passthrough"])
        self.passthrough_reason = status["passthrough_reason"] or None

    def add_problems(self, where: str, event: Mapping[str, Any]) -> None:
        """Take note of what the loader found `wrong` or `missing`."""
        for kind, text in (("wrong", "not as stored"), ("missing", "missing")):
            names = event[kind]
            self.problems += [f"{where}: {name}: {text}" for name in names[:_PROBLEMS_NAMED]]
            if (more := len(names) - _PROBLEMS_NAMED) > 0:
                self.problems.append(f"{where}: {more} more {text}")

    def as_json(self) -> dict[str, Any]:
        """The result for scripts."""
        plain = asdict(self)
        return {"ok": self.ok, **plain, "epochs": [epoch.as_json() for epoch in self.epochs]}
