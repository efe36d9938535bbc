"""Benchmarks that pair the mount with its native twin in the same run.

`python -m bench NAME` sets everything up by itself (data, server, mount), alternates the two sides
and reports medians of pairwise ratios, because the absolute figures of a shared machine drift by
more than the differences that matter.

Parts: `rows` (pairs, medians, JSON; pure), `machine` (facts), `readers` (the cheapest possible
reading loops), `client` (a plain parallel client of the object store), `hot` and `cold` (the
scenarios), `plot` (a chart).
"""
