"""Where does what this folder's runs remember lie? Below one name, which git ignores and no stage declares. Cheap to import: every command does."""

from pathlib import Path

STATE_DIR = Path(".posttrain")
JOBS = "jobs.db"  # records of the jobs that flows started on pools
RUNS = "runs"  # locks of the flows that live
TRACES = "traces.db"
