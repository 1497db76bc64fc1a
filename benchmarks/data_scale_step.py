"""One step of `benchmarks.data_scale`, alone in its process: it prints its seconds and its peak
memory as JSON, with what it can say of its result."""

import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from imblearn.over_sampling import SMOTE
from numpy.typing import NDArray
from sklearn.metrics import pairwise_distances_argmin_min
from sklearn.neighbors import NearestNeighbors

from posttrain.config.params import load_params
from posttrain.data.files import ParquetBatches, read_parquet, write_batches, write_json, write_jsonl, write_text
from posttrain.data.resampling.cells import cell_of
from posttrain.data.resampling.coreset import choose_coreset
from posttrain.data.resampling.features import Space, features_in_batches
from posttrain.data.resampling.selected import Selected
from posttrain.data.resampling.smote import contamination, plan_points, wanted_sizes
from posttrain.data.schemas import TASKS_SCHEMA, TRAJECTORIES_SCHEMA, rows_from_table
from posttrain.data.validation.leakage import TASK_COLUMNS
from posttrain.data.validation.page import render_page
from posttrain.data.validation.validate import kept, quarantined, summary, validate

RAW = Path("data/raw")
MAX_TOKENS, TARGET_FRAC, NUM_NEIGHBORS, SEED = 1024, 0.5, 5, 1
NUM_DIMENSIONS, NUM_CLUSTERS = 64, 2000  # of the rows of which 1 in 20 is chosen
# A facility location as submodlib's own examples set it up; prints seconds, then what was chosen.
SUBMODLIB = """
import json, sys, time
import numpy, submodlib
points = numpy.load(sys.argv[1])
start, start_cpu = time.monotonic(), time.process_time()
function = submodlib.FacilityLocationFunction(n=len(points), data=points, mode="dense", metric="euclidean")
chosen = function.maximize(budget=int(sys.argv[2]), optimizer="LazyGreedy", show_progress=False)
seconds, cpu_seconds = time.monotonic() - start, time.process_time() - start_cpu
[peak] = [line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")]
print(json.dumps([seconds, cpu_seconds, int(peak) / 1024, [int(index) for index, _ in chosen]]))
"""


def main() -> None:
    step, num_rows, folder, submodlib = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4]
    clock = _Clock()
    match step:
        case "file":
            make_file(folder / "rows.parquet", num_rows)
            found: dict[str, float] = {"mb": (folder / "rows.parquet").stat().st_size / 1e6}
        case "validation" | "validation whole":
            found = check(folder, is_whole=step.endswith("whole"))
        case "features" | "features whole":
            found = place(folder, num_rows, is_whole=step.endswith("whole"))
        case "smote" | "smote whole":
            found = plan(folder, is_whole=step.endswith("whole"))
        case _:
            found = choose(folder, num_rows, step, submodlib)
    print(json.dumps({**clock.read(), "peak_mib": round(_peak_mib()), **found}))


def make_file(path: Path, num_rows: int) -> None:
    """Real conversations with other ids, other digits (a zero stays one, so that numbers stay
    numbers) and other words of users; no two are equal."""
    table = read_parquet(RAW / "demonstrations.parquet", TRAJECTORIES_SCHEMA)
    rows = table.to_pylist()
    words = [message["content"] for row in rows for message in row["messages"] if message["role"] == "user"]
    draw = random.Random(SEED)

    def copies() -> Iterator[pa.Table]:
        for start in range(0, num_rows, 4096):
            some = [_changed(rows[index % len(rows)], index, words, draw) for index in range(start, start + 4096)]
            yield pa.Table.from_pylist(some[: num_rows - start], schema=TRAJECTORIES_SCHEMA)

    write_batches(path, copies(), TRAJECTORIES_SCHEMA)


def check(folder: Path, *, is_whole: bool) -> dict[str, float]:
    """All that the stage does."""
    rows = ParquetBatches(folder / "rows.parquet", TRAJECTORIES_SCHEMA)
    if is_whole:
        rows = replace(rows, max_rows=2**62, max_bytes=2**62)
    tasks = ParquetBatches(RAW / "tasks.parquet", TASKS_SCHEMA, TASK_COLUMNS)
    verdict = validate(rows, tasks, max_tokens=MAX_TOKENS, source=rows.path)
    write_jsonl(folder / "quarantine.jsonl", quarantined(verdict, rows))
    write_json(folder / "summary.json", summary(verdict))
    write_text(folder / "index.html", render_page(verdict, rows, max_quarantine_frac=1.0))
    write_batches(folder / "validated.parquet", kept(verdict, rows), TRAJECTORIES_SCHEMA)
    return {"kept": float(verdict.is_kept.sum())}


def place(folder: Path, num_rows: int, *, is_whole: bool) -> dict[str, float]:
    """Features of all rows; beside them, unmeasured by the clock of others, each row's cell."""
    source = Selected(folder / "rows.parquet", np.arange(num_rows))
    if is_whole:
        points_N_D = Space([messages for batch in source for messages in batch], seed=SEED).fitted_points
        return {"dimensions": points_N_D.shape[1]}
    np.save(folder / "features.npy", features_in_batches(source, num_rows, seed=SEED))
    return {}


def choose(folder: Path, num_rows: int, step: str, submodlib: str) -> dict[str, float]:
    """`coreset of 0.9`: as the default run chooses, of the rows' own features; `of 1 in 20`: by
    diversity alone, of made-up clusters. With the radius: how far the farthest row is from a chosen
    one, and with the mean of all."""
    is_tenth_left = step.startswith("coreset of 0.9")
    points_N_D = np.load(folder / "features.npy") if is_tenth_left else _clusters(num_rows)
    losses_N = np.random.default_rng(SEED).random(num_rows)
    keep = round(0.9 * num_rows) if is_tenth_left else num_rows // 20
    given = np.argsort(-losses_N, kind="stable")[: keep // 2] if is_tenth_left else np.zeros(0, np.int64)
    clock = _Clock()
    found: dict[str, float] = {}
    if step.endswith("numpy"):
        chosen = _greedy(points_N_D, given, keep)
    elif step.endswith("submodlib"):
        np.save(folder / "clusters.npy", points_N_D)
        command = [submodlib, "-c", SUBMODLIB, str(folder / "clusters.npy"), str(keep)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        found["seconds"], found["cpu_seconds"], found["peak_mib"], indices = json.loads(done.stdout.splitlines()[-1])
        chosen = np.array(indices)
    else:
        strategy: Any = "hybrid" if is_tenth_left else "diversity"
        chosen = choose_coreset(strategy, keep=keep, losses_N=losses_N, features_N_D=points_N_D, seed=SEED)
    found = {**clock.read(), "peak_mib": round(_peak_mib()), **found}
    distances = _to_nearest(points_N_D, chosen) if num_rows <= 100_000 else None
    return found if distances is None else {**found, "radius": distances.max(), "mean": distances.mean()}


def plan(folder: Path, *, is_whole: bool) -> dict[str, float]:
    points_N_D = np.load(folder / "features.npy")
    labels = load_params().resample_data.cells
    cells = [
        cell_of(row, labels)
        for batch in ParquetBatches(folder / "rows.parquet", TRAJECTORIES_SCHEMA)
        for row in rows_from_table(batch)
    ]
    clock = _Clock()
    if is_whole:
        names, numbers_N = np.unique(cells, return_inverse=True)
        wanted = wanted_sizes(cells, TARGET_FRAC)
        growing = {number: wanted[name] for number, name in enumerate(names) if wanted[name] > cells.count(name) > 5}
        sampler = SMOTE(sampling_strategy=growing, k_neighbors=NUM_NEIGHBORS, random_state=SEED)
        new_M_D = sampler.fit_resample(points_N_D, numbers_N)[0][len(cells) :]
        NearestNeighbors(n_neighbors=NUM_NEIGHBORS, algorithm="brute").fit(points_N_D).kneighbors(new_M_D)
        return {**clock.read(), "points": len(new_M_D)}
    points = plan_points("smote", points_N_D, cells, target_frac=TARGET_FRAC, num_neighbors=NUM_NEIGHBORS, seed=SEED)
    return {**clock.read(), "points": len(points), "contamination": contamination(points)}


def _changed(row: dict[str, Any], index: int, words: list[str], draw: random.Random) -> dict[str, Any]:
    digits = str.maketrans("123456789", "".join(draw.sample("123456789", 9)))
    messages = [_changed_message(message, digits, words, draw) for message in row["messages"]]
    return {**row, "trajectory_id": f"{index:016x}", "task_id": f"task-{index:x}", "messages": messages}


def _changed_message(
    message: dict[str, Any], digits: dict[int, int], words: list[str], draw: random.Random
) -> dict[str, Any]:
    if message["role"] == "system":
        return message
    content = (message["content"] or "").translate(digits)
    if message["role"] == "user":
        other = draw.choice(words)
        content += f" {other[: draw.randrange(len(other))]} {draw.getrandbits(32)}"
    calls = [
        {**call, "function": {**call["function"], "arguments": call["function"]["arguments"].translate(digits)}}
        for call in message["tool_calls"] or ()
    ]
    return {**message, "content": content, "tool_calls": calls or None}


def _clusters(num_rows: int) -> NDArray[np.float64]:
    """Shape (N, 64), rows of length 1."""
    rng = np.random.default_rng(SEED)
    centres = rng.normal(size=(NUM_CLUSTERS, NUM_DIMENSIONS))
    points: NDArray[np.float64] = rng.normal(size=(num_rows, NUM_DIMENSIONS))
    points *= 0.3
    points += centres[rng.integers(NUM_CLUSTERS, size=num_rows)]
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    return points


def _greedy(points_N_D: NDArray[np.float64], given: NDArray[np.int64], keep: int) -> NDArray[np.int64]:
    """Greedy k-centre (Gonzalez 1985) as one writes it in NumPy."""
    first = np.argmin(np.linalg.norm(points_N_D - points_N_D.mean(axis=0), axis=1))
    chosen = given.tolist() or [int(first)]
    nearest_N = np.full(len(points_N_D), np.inf)
    for index in chosen:
        nearest_N = np.minimum(nearest_N, np.linalg.norm(points_N_D - points_N_D[index], axis=1))
    while len(chosen) < keep:
        chosen.append(int(np.argmax(nearest_N)))
        nearest_N = np.minimum(nearest_N, np.linalg.norm(points_N_D - points_N_D[chosen[-1]], axis=1))
    return np.array(chosen)


def _to_nearest(points_N_D: NDArray[np.float64], chosen: NDArray[np.int64]) -> NDArray[np.float64]:
    found: NDArray[np.float64] = pairwise_distances_argmin_min(points_N_D, points_N_D[chosen])[1]
    return found


class _Clock:
    """Since it was made: seconds, and those that this process's threads were on processors, which
    others on the machine hardly lengthen."""

    def __init__(self) -> None:
        self._start_s, self._start_cpu_s = time.monotonic(), time.process_time()

    def read(self) -> dict[str, float]:
        return {
            "seconds": round(time.monotonic() - self._start_s, 3),
            "cpu_seconds": round(time.process_time() - self._start_cpu_s, 3),
        }


def _peak_mib() -> float:
    """Not `getrusage`'s, which a process inherits from the one that started it."""
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) / 1024


if __name__ == "__main__":
    main()
