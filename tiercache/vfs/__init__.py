"""What POSIX means here. Knows no kernel.

* `api`: what a driver may ask;
* `names`: which keys are names, and which cannot be;
* `namespace`: lookups and listings, and how long they are believed;
* `directories`: snapshots for readdir;
* `filesystem`: the tree itself.
"""
