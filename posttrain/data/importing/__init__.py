"""Imports files of trajectories: detects their format, reads records one by one, and quarantines
bad ones."""
