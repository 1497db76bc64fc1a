"""Environments of the package verifiers, played in a process of their own."""
