"""Replies as a fault makes them: invented, or a server's with something changed."""

from __future__ import annotations

import http.client
import re

from tiercache.testing import proxyhttp
from tiercache.testing.faults import Fault
from tiercache.testing.proxyhttp import Reply, Request


def invented(request: Request, fault: Fault) -> Reply:
    """A reply that no server made."""
    status = fault.status or 307
    reason = http.client.responses.get(status, "Unknown")
    headers = [("Content-Type", "application/xml")]
    if fault.redirect is not None:
        headers.append(("Location", fault.redirect))
    body = b"" if request.method == "HEAD" else fault.body
    headers.append(("Content-Length", str(len(body))))
    return Reply(status, reason, headers, [body], len(body))


def altered(reply: Reply, request: Request, fault: Fault) -> Reply:
    """*reply* with the faults of its headers and its body."""
    stated = reply.header("Content-Range")
    if stated is not None:
        reply.set_header("Content-Range", _content_range(stated, fault))
    if fault.length_delta and reply.length is not None:
        reply.length += fault.length_delta
        reply.set_header("Content-Length", str(reply.length))
        reply.body = proxyhttp.resized(reply.body, reply.length)
    if fault.corrupt_at is not None:
        reply.body = proxyhttp.with_flipped_bit(reply.body, fault.corrupt_at)
    if fault.chunked and request.method != "HEAD":
        reply.length = None
        reply.set_header("Content-Length", None)
    if reply.length is None:
        reply.set_header("Transfer-Encoding", "chunked")
    for name, value in fault.headers.items():
        reply.set_header(name, value)
    return reply


def _content_range(stated: str, fault: Fault) -> str | None:
    """`bytes A-B/SIZE`, moved or dropped."""
    if fault.drop_content_range:
        return None
    return re.sub(
        r"(\d+)-(\d+)/",
        lambda m: "{}-{}/".format(*(int(end) + fault.shift_content_range for end in m.groups())),
        stated,
    )
