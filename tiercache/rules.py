"""Which rule speaks for a file: by path, size and suffix; the first that matches wins. Pure.

A pattern is a path below the mount's root. `*` and `?` stay within one name, `[...]` is a set of
characters, and `**` as a whole name stands for any number of directories, also none: `ckpt/**` is
everything below ckpt, `**/*.idx` every index file, `data/*` the files of data alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, TypeVar

#: A name of any kind and what separates it, any number of times.
_DIRECTORIES: Final = "(?:[^/]+/)*"

Said = TypeVar("Said")


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """What a file must be, all of it at once; what is left out does not matter."""

    path: str | None = None
    #: Endings of the name, as ".idx"; one is enough.
    suffixes: tuple[str, ...] = ()
    #: Bytes, both included.
    min_size: int = 0
    max_size: int | None = None
    _path: re.Pattern[str] | None = field(init=False, repr=False, compare=False, default=None)

    def __post_init__(self) -> None:
        """Raises ValueError for a pattern that no path can match."""
        if self.path is not None:
            object.__setattr__(self, "_path", compile_pattern(self.path))

    def accepts(self, path: str, size: int) -> bool:
        """Say whether a file of *size* bytes at *path*, below the mount's root, is one."""
        if size < self.min_size or (self.max_size is not None and size > self.max_size):
            return False
        if self.suffixes and not path.endswith(self.suffixes):
            return False
        return self._path is None or self._path.fullmatch(path) is not None


def compile_pattern(pattern: str) -> re.Pattern[str]:
    """*pattern* as a regular expression for whole paths; ValueError when nothing can match it."""
    names = pattern.removeprefix("/").split("/")
    if any(name in ("", ".", "..") for name in names):
        raise ValueError(f'"{pattern}" has an empty name, "." or ".." in it, which no path has')
    *above, last = names
    head = "".join(_DIRECTORIES if name == "**" else _name(name) + "/" for name in above)
    try:
        return re.compile(head + (".+" if last == "**" else _name(last)), re.DOTALL)
    except re.error as error:
        raise ValueError(f'"{pattern}" is not a pattern: {error.msg}') from error


def _name(glob: str) -> str:
    """One name of a pattern; nothing in it crosses a slash."""
    parts = re.split(r"(\*+|\?|\[!?\]?[^\]]*\])", glob)
    return "".join(_part(part) for part in parts)


def _part(part: str) -> str:
    if part.startswith("*"):
        return "[^/]*"
    if part == "?":
        return "[^/]"
    if part.startswith("[") and part.endswith("]"):
        return f"(?!/){_set(part[1:-1])}"
    return re.escape(part)


def _set(characters: str) -> str:
    """A set as the shell writes it: "!" negates, "-" is a range, all else is itself."""
    negated = characters.startswith("!")
    plain = re.sub(r"([^\w-])", r"\\\1", characters[negated:])
    return f"[{'^' if negated else ''}{plain}]"


def first_match(rules: Iterable[tuple[Match, Said]], path: str, size: int) -> Said | None:
    """What the first of *rules* that accepts the file says; None: none of them speaks."""
    return next((said for match, said in rules if match.accepts(path, size)), None)
