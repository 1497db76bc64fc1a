"""Whether a world keeps the contract of `posttrain/worlds/protocol.py`: each rule tried on real
tasks and real episodes, for who writes a world of their own.

Nothing is known of the world but its protocol. What an adversary plays is made of what the world's
own expert played.
"""
