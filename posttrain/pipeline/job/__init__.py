"""Programs of a job: one stage in its snapshot, through DVC."""
