"""What a machine with one GPU can show that no other can: `make gpu` (docs/gpu.md)."""
