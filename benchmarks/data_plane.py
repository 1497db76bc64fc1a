"""Validates a million demonstrations alone, in two processes and on a Ray cluster of two nodes of
this machine, of which a worker is killed on the way: the same bytes, the time, and the memory of
each process.

    PYTHONPATH=infra/ray/packages python -m benchmarks.data_plane --rows 1000000

Rows are those of the toy world's expert, each question with a number of its own. Writes
`reports/data_plane.json`; `--ways ray` adds to it.
"""

import argparse
import hashlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.compute as pc

from posttrain.config.params import load_params
from posttrain.data.files import ParquetBatches, write_batches, write_json
from posttrain.data.schemas import TRAJECTORIES_SCHEMA, trajectories_table
from posttrain.data.validation.validate import kept, summary, validate
from posttrain.provenance.costs import processor_kind
from posttrain.rollout.episodes import demonstrate
from posttrain.runtime.batch_workers import VARIABLE
from posttrain.worlds.catalog import example_params, make_domain, require_expert

WAYS = ("alone", "processes", "ray")
REPORT = Path("reports/data_plane.json")
NUM_BASE = 500
_LOOK_S = 0.2


def make_rows(file: Path, num_rows: int) -> None:
    """Write so many different demonstrations, flawed ones among them."""
    domain = require_expert(make_domain(example_params("toy")), needed_by="the benchmark")
    tasks, limits = domain.tasks("sft", NUM_BASE), load_params().agent
    shown = demonstrate(domain, tasks, limits=limits, seed=0, is_flawless=False, reasoning_frac=0.3)
    base = trajectories_table(shown).combine_chunks()
    blocks = (numbered(base, number) for number in range(-(-num_rows // NUM_BASE)))
    write_batches(file, blocks, TRAJECTORIES_SCHEMA)


def numbered(table: pa.Table, number: int) -> pa.Table:
    """The rows with a number behind what users say, and in their ids."""
    messages = table["messages"].chunk(0)
    values = messages.values
    content = values.field("content")
    with_number = pc.binary_join_element_wise(content, f"({number})", " ")
    said = pc.if_else(pc.equal(values.field("role"), "user"), with_number, content)
    fields = [said if one.name == "content" else values.field(one.name) for one in values.type]
    changed = pa.StructArray.from_arrays(fields, fields=list(values.type))
    ids = pc.binary_join_element_wise(pc.utf8_slice_codeunits(table["trajectory_id"], 0, 8), f"{number:08x}", "")
    place = table.schema.get_field_index
    found = table.set_column(
        place("messages"), table.schema.field("messages"), type(messages).from_arrays(messages.offsets, changed)
    )
    return found.set_column(place("trajectory_id"), table.schema.field("trajectory_id"), ids)


def run(way: str, rows: Path, out: Path) -> dict[str, Any]:
    """Validate and write what is kept; what it took, and the digest of the bytes."""
    os.environ[VARIABLE] = {"alone": "1", "processes": "2", "ray": "ray"}[way]
    batches = ParquetBatches(rows, TRAJECTORIES_SCHEMA)
    with cluster(300 << 20) if way == "ray" else nullcontext():
        began = time.monotonic()
        with watched(kills=way == "ray") as seen:
            result = validate(batches, [], max_tokens=400, source=rows)
            write_batches(out, kept(result, batches), TRAJECTORIES_SCHEMA)
        seconds = time.monotonic() - began
    told = json.dumps([summary(result), sorted(result.reasons)]).encode()
    return {
        "seconds": round(seconds, 1),
        "num_kept": int(result.is_kept.sum()),
        "digest": hashlib.sha256(out.read_bytes() + told).hexdigest(),
        "peak_mib_of_the_command": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
        "peak_mib_of_a_worker": seen["peak"] >> 20,
        "num_killed": seen["killed"],
    }


@contextmanager
def cluster(object_store_bytes: int) -> Iterator[None]:
    """A Ray cluster of two nodes of a core each, which RAY_ADDRESS names."""
    import ray
    from ray.cluster_utils import Cluster

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    node: dict[str, Any] = {"num_cpus": 1, "object_store_memory": object_store_bytes}
    made = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    made.add_node(**node)
    os.environ["RAY_ADDRESS"] = made.address
    try:
        yield
    finally:
        ray.shutdown()
        made.shutdown()


@contextmanager
def watched(*, kills: bool) -> Iterator[dict[str, int]]:
    """Watch the memory of the processes that compute batches, which Ray names after the function;
    where it `kills`, one of them dies after ten seconds."""
    seen, over = {"peak": 0, "killed": 0}, threading.Event()

    def look() -> None:
        began = time.monotonic()
        while not over.wait(_LOOK_S):
            for one in psutil.Process().children(recursive=True):
                with suppress(psutil.Error):
                    words = " ".join(one.cmdline())
                    if "ray::check_batch" in words or "loky" in words or "joblib" in words:
                        seen["peak"] = max(seen["peak"], one.memory_info().rss)
                    if kills and not seen["killed"] and time.monotonic() - began > 10 and "ray::check_batch" in words:
                        one.kill()
                        seen["killed"] = 1

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()


def main() -> None:
    parser = argparse.ArgumentParser("benchmarks.data_plane", description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--run", nargs=3, metavar=("WAY", "ROWS", "OUT"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.run:
        print(json.dumps(run(given.run[0], Path(given.run[1]), Path(given.run[2]))))
        return
    report = json.loads(REPORT.read_text(encoding="utf-8")) if REPORT.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        rows = Path(folder) / "rows.parquet"
        make_rows(rows, given.rows)
        print(f"{given.rows} rows in {rows.stat().st_size >> 20} MiB", flush=True)
        for way in given.ways:
            command = [sys.executable, "-m", "benchmarks.data_plane", "--run", way, str(rows), f"{folder}/kept.parquet"]
            ended = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            found = json.loads(ended.stdout.splitlines()[-1])
            print(way, json.dumps(found), flush=True)
            report.setdefault(str(given.rows), {"processor": processor_kind()})[way] = found
            write_json(REPORT, report)


if __name__ == "__main__":
    main()
