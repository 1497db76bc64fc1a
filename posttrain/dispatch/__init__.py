"""Run a command somewhere else: on this machine's GPU slots, on SLURM, on Kubernetes, behind one
contract."""
