"""What the rules of the configuration say about one object: whether, and how much, a tier takes.

The number of a rule is a digest of its name, so it means the same in every process: it is recorded
with each object admitted under it, and what a tier holds of it is counted over restarts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from tiercache.config import RuleConfig
from tiercache.rules import Match, first_match
from tiercache.tier.residency import Residency
from tiercache.tier.tier import Tier
from tiercache.types import Inode


class Ruling:
    """The rules, in order; the first that matches an object speaks for it."""

    def __init__(self, rules: Sequence[RuleConfig]) -> None:
        self._numbers = [(_match(rule), rule_number(rule.name)) for rule in rules]
        self._rules = {rule_number(rule.name): rule for rule in rules}
        self._shares = {number: dict(rule.share) for number, rule in self._rules.items()}

    def number(self, obj: Inode) -> int:
        """The number of the rule that speaks for *obj*, 0: none does."""
        if not self._numbers:
            return 0
        path = obj.key.decode(errors="surrogateescape")
        return first_match(self._numbers, path, obj.size) or 0

    def rule(self, number: int) -> RuleConfig | None:
        """The rule of that number, None for 0 and for one that is configured no more."""
        return self._rules.get(number)

    def refusal(self, item: Residency, tier: Tier, nbytes: int) -> str | None:
        """Why *tier* may not take *nbytes* of *item*; None: no rule is against it.

        What a person pinned is beyond the rules.
        """
        rule = self._rules.get(item.rule)
        if rule is None or (item.pinned and not rule.pin):
            return None
        if not rule.admit:
            return f"refused by rule {rule.name}"
        share = self._shares[item.rule].get(tier.name)
        here = tier.shares[item.rule] + tier.share_reserved[item.rule]
        if share is not None and here + nbytes > share:
            return f"refused by rule {rule.name}: its share is full"
        return None


def rule_number(name: str) -> int:
    """1 to 65535."""
    digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
    return 1 + int.from_bytes(digest, "big") % 65535


def _match(rule: RuleConfig) -> Match:
    return Match(
        path=rule.path, suffixes=rule.suffixes, min_size=rule.min_size, max_size=rule.max_size
    )
