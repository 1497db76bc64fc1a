"""Choosing among many tools: a catalogue, retrievers of its tools, their training and their use."""
