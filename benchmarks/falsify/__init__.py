"""Tries to make `dvc.lock` say what is not so: see `__main__`."""
