"""Agents that are programs of their own, made into loops. Imported by a user's module only, so that
no stage waits for a framework."""
