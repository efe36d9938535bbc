"""Replies that nobody waits for."""

from __future__ import annotations

import errno


def is_gone(error: OSError) -> bool:
    """Whether a reply failed because nobody waits for it: interrupted, or the mount is gone."""
    return error.errno in (errno.ENOENT, errno.ENODEV)
