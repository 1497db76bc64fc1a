"""What runs on the other side of a pool: one stage in its snapshot, through DVC."""
