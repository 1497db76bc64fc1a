"""Measures tool retrieval: `python -m benchmarks.tool_retrieval FOLDER [--encoder FOLDER]`.

FOLDER has BFCL v4's single-turn files: 1,438 functions and 1,911 questions. Rankings are compared
before and after training, on all questions and on those about held-out tools; then an index of
100,000 tools, vectors of the catalogue with noise, is compared with exact search. The knobs are
those of params.yaml.
"""

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import faiss
import numpy as np

from posttrain.config.params import load_params
from posttrain.data.files import write_json
from posttrain.provenance.costs import processor_kind
from posttrain.retrieval.params import TrainRetrieverParams
from posttrain.retrieval.quality import compare
from posttrain.retrieval.rankers import Encoder, vector_index
from posttrain.retrieval.sources import read_bfcl
from posttrain.retrieval.training import Vectors, train_retriever

REPORT = Path("reports/tool_retrieval.json")
NUM_TOOLS, NOISE = 100_000, 0.35  # a copy has a cosine of about 0.94 to its tool
K = 10
SHOWN = ("recall_at_1", "recall_at_5", "recall_at_10", "mrr", "ndcg_at_10")


def measure_training(folder: Path, params: TrainRetrieverParams, seed: int) -> tuple[dict[str, Any], Encoder, Vectors]:
    """The table of all rankings, and what training them took."""
    catalogue = read_bfcl(folder)
    start, start_cpu, load = time.monotonic(), time.process_time(), os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as scratch:
        trained = train_retriever(catalogue, [], params=params, seed=seed, scratch=Path(scratch))
    figures = {
        "num_tools": len(catalogue.tools),
        "num_questions": len(catalogue.questions),
        "num_held_out_tools": len(trained.split.held_out),
        "training_s": round(time.monotonic() - start),
        "training_cpu_s": round(time.process_time() - start_cpu),
        "load": [round(load, 1), round(os.getloadavg()[0], 1)],
        "num_threads": int(os.environ.get("OMP_NUM_THREADS", os.cpu_count() or 1)),
        "losses": [round(loss, 3) for loss in trained.losses],
    }
    untrained = {name: ranker for name, ranker in trained.rankers.items() if not name.startswith("trained")}
    figures["all_tools"] = compare(untrained, catalogue.tools, catalogue.questions)
    figures["held_out_tools"] = compare(trained.rankers, catalogue.tools, trained.split.test)
    asked = trained.encoder.encode([question.text for question in trained.split.test])
    return figures, trained.encoder, np.vstack([trained.vectors_T_D, asked])


def measure_index(vectors_T_D: Vectors, asked_Q_D: Vectors, *, seed: int) -> dict[str, float]:
    """Recall@10 of the index against exact search, and the milliseconds of a search, one question
    at a time on one thread."""
    rng = np.random.default_rng(seed)
    copied = vectors_T_D[rng.integers(len(vectors_T_D), size=NUM_TOOLS)]
    copied += rng.standard_normal(copied.shape, dtype=np.float32) * NOISE / np.sqrt(copied.shape[1])
    copied /= np.linalg.norm(copied, axis=1, keepdims=True)
    exact = vector_index(copied, exact_up_to=NUM_TOOLS)
    start = time.monotonic()
    index = vector_index(copied, exact_up_to=0)
    built_s = time.monotonic() - start
    faiss.omp_set_num_threads(1)
    _, wanted_Q_K = exact.search(asked_Q_D, K)
    took, hits = [], 0
    for asked, wanted in zip(asked_Q_D, wanted_Q_K, strict=True):
        start = time.perf_counter()
        _, found = index.search(asked[None], K)
        took.append(1000 * (time.perf_counter() - start))
        hits += len(set(found[0].tolist()) & set(wanted.tolist()))
    return {
        "num_tools": NUM_TOOLS,
        "build_s": round(built_s, 1),
        "recall_at_10_of_exact": round(hits / wanted_Q_K.size, 4),
        "search_ms_median": round(float(np.median(took)), 2),
        "search_ms_p95": round(float(np.quantile(took, 0.95)), 2),
    }


def measure_encoding(encoder: Encoder, questions: list[str]) -> float:
    """Median milliseconds to encode one question."""
    took = []
    for question in questions:
        start = time.perf_counter()
        encoder.encode([question])
        took.append(1000 * (time.perf_counter() - start))
    return round(float(np.median(took)), 1)


def table(found: dict[str, Any], prefix: str) -> str:
    rows = [
        f"| {name} | " + " | ".join(f"{one[prefix + key]:.3f}" for key in SHOWN) + " |" for name, one in found.items()
    ]
    return "\n".join([f"| | {' | '.join(SHOWN)} |", "|---" * (len(SHOWN) + 1) + "|", *rows])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--encoder", help="a folder; that of params.yaml by default")
    parser.add_argument("--seed", type=int, help="of the split and the training; that of params.yaml by default")
    given = parser.parse_args()
    params = load_params()
    seed = params.seed if given.seed is None else given.seed
    settings = params.train_retriever.model_copy(update={"encoder": given.encoder or params.train_retriever.encoder})
    figures, encoder, vectors = measure_training(given.folder, settings, seed)
    num_tools = figures["num_tools"]
    figures |= {"seed": seed, "processor": processor_kind(), "knobs": settings.model_dump(exclude={"encoder"})}
    write_json(REPORT, figures)  # before what else may fail: training takes minutes
    questions = [question.text for question in read_bfcl(given.folder).questions[:100]]
    index = measure_index(vectors[:num_tools], vectors[num_tools:], seed=seed)
    figures["index"] = index | {"encode_ms_median": measure_encoding(encoder, questions)}
    write_json(REPORT, figures)
    print(f"all {num_tools} tools, mean over questions\n{table(figures['all_tools'], '')}\n")
    print(f"held-out tools, mean over tools\n{table(figures['held_out_tools'], 'macro_')}\n")
    print(figures["index"])


if __name__ == "__main__":
    main()
