"""Objectives: the loss of one token, given how much likelier it has become and its advantage."""
