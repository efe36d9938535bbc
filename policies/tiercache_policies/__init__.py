"""Pure eviction policies, one file each; they register as entry points like third-party ones."""
