"""How a job's files get to it and its result back: by a disk that both see, or through S3."""
