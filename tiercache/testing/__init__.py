"""Shipped fakes and servers: memory origin, faults, local S3."""
