"""Names, inodes, listings and residency in LMDB."""
