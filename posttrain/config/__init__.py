"""`params.yaml` as a whole: the sections of all rooms, put together."""
