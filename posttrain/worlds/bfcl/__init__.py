"""BFCL v4 multi-turn: the entries, executable classes and rule of the package `bfcl-eval`."""
