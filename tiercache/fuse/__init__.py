"""The kernel's side: wire protocol, drivers, holder, mount point."""
