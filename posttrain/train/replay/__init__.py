"""Replay: episodes that join a group besides those played in the step, or are begun for it."""
