"""Which files a rule speaks for."""

from __future__ import annotations

import pytest

from tiercache.rules import Match, first_match


@pytest.mark.parametrize(
    ("pattern", "inside", "outside"),
    [
        ("ckpt/**", ["ckpt/a", "ckpt/a/b"], ["ckpt", "ckpt2/a", "x/ckpt/a"]),
        ("**/*.idx", ["a.idx", "x/y/a.idx"], ["a.idx2", "a.idx/b"]),
        ("data/*", ["data/a"], ["data/a/b", "data", "xdata/a"]),
        ("a/**/z", ["a/z", "a/b/z", "a/b/c/z"], ["az", "a/bz", "b/a/z"]),
        ("/shard-??.tar", ["shard-01.tar"], ["shard-1.tar", "shard-0/.tar"]),
        ("s[0-3]", ["s0", "s3"], ["s4", "s-", "s0/"]),
        ("s[!0-3]", ["s4", "sx"], ["s0", "s/", "s"]),
        ("s[.^]", ["s.", "s^"], ["sx"]),
        ("a+b(c)", ["a+b(c)"], ["aab(c)"]),
        ("**", ["a", "a/b"], [""]),
        ("*", ["a", "line\nbreak"], ["a/b"]),
    ],
)
def test_patterns(pattern, inside, outside):
    match = Match(path=pattern)
    assert [path for path in inside + outside if match.accepts(path, 1)] == inside


@pytest.mark.parametrize("pattern", ["", "a//b", "../a", "a/./b", "a/", "x[z-a]"])
def test_patterns_that_match_nothing_are_refused(pattern):
    with pytest.raises(ValueError, match=r"pattern|empty name"):
        Match(path=pattern)


def test_sizes_include_their_bounds():
    match = Match(min_size=10, max_size=20)
    assert [size for size in (9, 10, 20, 21) if match.accepts("a", size)] == [10, 20]


def test_all_conditions_hold_at_once_and_one_suffix_is_enough():
    match = Match(path="a/**", suffixes=(".idx", ".json"), max_size=5)
    assert match.accepts("a/x.json", 5)
    assert match.accepts("a/x.idx", 5)
    assert not match.accepts("a/x.bin", 5)
    assert not match.accepts("b/x.json", 5)
    assert not match.accepts("a/x.json", 6)


def test_the_first_match_wins():
    rules = [(Match(path="a/keep"), "first"), (Match(path="a/**"), "second")]
    assert first_match(rules, "a/keep", 1) == "first"
    assert first_match(rules, "a/other", 1) == "second"
    assert first_match(rules, "b", 1) is None
