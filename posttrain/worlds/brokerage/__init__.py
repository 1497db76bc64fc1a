"""A broker's desk, where an agent can do harm."""
