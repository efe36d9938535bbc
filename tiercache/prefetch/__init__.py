"""Guessing what is read next.

* `streams`: sequential readers, found per region of a file rather than per handle.
"""
