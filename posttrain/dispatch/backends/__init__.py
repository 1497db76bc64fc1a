"""This machine, SLURM and Kubernetes, each behind `dispatch.contract.Pool`."""
