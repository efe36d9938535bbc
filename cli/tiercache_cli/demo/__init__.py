"""`tiercache demo`: the product end to end on one machine, with nothing but this package.

An embedded SeaweedFS is filled with a small but real-shaped dataset, mounted by the real command,
read for two epochs by a program that knows nothing of tiercache, and checked byte for byte.

Parts: `command` (click), `dataset` (what is stored; pure), `upload` (fills the bucket), `loader`
(the unmodified reader, a program of its own), `reader` (runs it), `figures` (what the status says
about an epoch; pure), `run` (the whole way and its clean-up), `show` (tables and progress).
"""
