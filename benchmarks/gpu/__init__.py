"""Measurements that need one GPU: `make gpu` (docs/gpu.md)."""
