"""Every episode of every stage in a SQLite store on the writer's disk: written beside the work,
read by `posttrain traces`.

No stage's result depends on it, so it lies outside `rollout/`, which stages declare as a
dependency: a nicer listing must retrain nothing.
"""
