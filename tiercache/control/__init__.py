"""The unix-socket API of a running mount."""
