"""tiercache: object storage as a POSIX tree, hot data on local disks, hot reads by the kernel."""

__version__ = "0.1.0"
