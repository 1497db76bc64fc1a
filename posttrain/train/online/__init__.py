"""Online training on the policy's own episodes; `loop.py` is its whole story."""
