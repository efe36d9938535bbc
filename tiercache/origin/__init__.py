"""Where the truth is: one small protocol, one file per store, concerns as wrappers."""
