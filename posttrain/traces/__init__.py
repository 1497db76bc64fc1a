"""Trace store: every episode of every stage, in a SQLite file that `posttrain traces` reads.

No stage's result depends on it, so it lies outside `rollout/`, which stages declare as a
dependency: a change of a listing reruns nothing.
"""
