"""What POSIX means here. Knows no kernel."""
