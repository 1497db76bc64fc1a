"""Joining: what is a member of a group besides what its task's episodes played."""
