"""Moves a job's files to it and its result back: on a disk that both see, or through S3."""
