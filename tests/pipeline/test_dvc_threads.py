"""DVC in several threads of one process."""

import sys
from concurrent.futures import ThreadPoolExecutor

from dvc.schema import COMPILED_MULTI_STAGE_SCHEMA
from dvc.utils.strictyaml import load

from posttrain.pipeline.dvc_threads import allow_threads


def test_threads_that_read_the_graph_at_once_find_no_error_in_it(repository, monkeypatch):
    interval_s = sys.getswitchinterval()
    monkeypatch.setattr("voluptuous.Schema.__call__", None)  # is put back after the test
    allow_threads()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(4) as threads:
            files = [str(repository / "dvc.yaml")] * 24
            read = list(threads.map(lambda file: load(file, schema=COMPILED_MULTI_STAGE_SCHEMA)[0], files))
    finally:
        sys.setswitchinterval(interval_s)
    assert all("train_policy" in one["stages"] for one in read)
