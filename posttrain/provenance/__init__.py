"""What happens around one stage: its inputs are frozen, it runs on the frozen copy, and `dvc.lock`
names what it read and nothing else."""
