"""Tries to falsify `dvc.lock`: see `__main__`."""
