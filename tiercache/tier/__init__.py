"""Local stores: sparse mirror files, block checksums, capacity."""
