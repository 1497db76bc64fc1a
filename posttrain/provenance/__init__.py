"""Exact provenance: `dvc.lock` never binds a result to inputs that were edited during the run."""
