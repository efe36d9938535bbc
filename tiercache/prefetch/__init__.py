"""Guessing what is read next."""
