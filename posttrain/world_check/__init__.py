"""Checks that a world keeps the contract of `posttrain/worlds/protocol.py`, for authors of worlds.

Twelve rules, each tried on real tasks and real episodes. Only the world's protocol is known: what
an adversary writes is derived from what the world's own expert wrote."""
