"""Moving bytes between origin, tiers and readers.

* `admission`: who may use a connection and memory next, by priority;
* `buffers`: recycled memory for bodies in flight;
* `fetch`: one ranged GET that several readers share while it fills;
* `fetcher`: single flight per block, and the cold read;
* `requests`: metadata calls with single flight.
"""
