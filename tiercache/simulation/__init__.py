"""Accesses without a mount: traces, generated workloads, and replaying them through policies."""
