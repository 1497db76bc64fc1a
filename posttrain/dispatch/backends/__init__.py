"""Backends: this machine, SLURM and Kubernetes, each behind `dispatch.backend.Backend`."""
