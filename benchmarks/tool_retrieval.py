"""Measures tool retrieval: `python -m benchmarks.tool_retrieval FOLDER [--encoder FOLDER]`.

FOLDER has BFCL v4's single-turn files: 1,438 functions and 1,911 questions. The tools of two worlds
stand among them. Rankings are compared before and after training, on questions about held-out tools
and on all; the worlds' experts play with what is retrieved and searched, beside what their tasks
offer; and an index of 100,000 tools, vectors of the catalogue with noise, is compared with exact
search. The knobs are those of params.yaml. `--splits 2 3 4 5` trains on other splits of the tools,
too, and adds their rankings to the report.
"""

import argparse
import contextlib
import json
import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import faiss
import numpy as np

from posttrain import demonstrate, evaluate, load_world, sft
from posttrain.config.params import load_params
from posttrain.data.files import write_json
from posttrain.provenance.costs import processor_kind
from posttrain.retrieval.catalogue import Catalogue, Question, of_world
from posttrain.retrieval.params import TrainRetrieverParams
from posttrain.retrieval.quality import compare
from posttrain.retrieval.rankers import Encoder, vector_index
from posttrain.retrieval.retriever import Retriever, load_retriever, save_retriever
from posttrain.retrieval.sources import read_bfcl
from posttrain.retrieval.training import Trained, train_retriever
from posttrain.rollout.episodes import run_episodes
from posttrain.rollout.offers import SEARCH, OfferingDomain, needed_tools, question_of
from posttrain.rollout.params import AgentParams
from posttrain.rollout.policy import expert_policy
from posttrain.types import Task, Trajectory
from posttrain.worlds.catalog import example_params, make_domain, require_expert
from posttrain.worlds.params import WorldParams
from posttrain.worlds.tools import Tool
from posttrain.worlds.toy.params import ToyFlawRates

WORLDS = ("toy", "stocks")
NUM_TRAIN_TASKS, NUM_TEST_TASKS = 64, 160
AGENT = load_params().agent.model_copy(update={"max_turns": 16})  # a search is a turn
REPORT = Path("reports/tool_retrieval.json")
NUM_TOOLS, NOISE = 100_000, 0.35  # a copy has a cosine of about 0.94 to its tool
K = 10
SHOWN = ("recall_at_1", "recall_at_5", "recall_at_10", "mrr", "ndcg_at_10")


def with_worlds(folder: Path) -> Catalogue:
    """The functions and questions of BFCL, and the tools of the worlds."""
    catalogue = read_bfcl(folder)
    for name in WORLDS:
        catalogue = catalogue.with_more(of_world(make_domain(world_of(name)).tools, name))
    return catalogue


def examples_of(name: str, num_tasks: int) -> list[Question]:
    """Questions of a world with the tools that its expert calls."""
    domain = require_expert(make_domain(world_of(name)), needed_by="the benchmark")
    tasks = domain.tasks("sft", num_tasks)
    asked = zip(tasks, needed_tools(domain, tasks, AGENT), strict=True)
    return [Question(question_of(task), names, f"world/{name}") for task, names in asked if names]


def world_of(name: str) -> WorldParams:
    return load_params().world if name == "stocks" else example_params(name)


def measure_training(catalogue: Catalogue, params: TrainRetrieverParams, seed: int) -> tuple[dict[str, Any], Trained]:
    """Rankings of the tools that were not trained on, and what training took."""
    own = [one for name in WORLDS for one in examples_of(name, NUM_TRAIN_TASKS)]
    start, start_cpu, load = time.monotonic(), time.process_time(), os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as scratch:
        trained = train_retriever(catalogue, own, params=params, seed=seed, scratch=Path(scratch))
    return {
        "seed": seed,
        "processor": processor_kind(),
        "knobs": params.model_dump(exclude={"encoder"}),
        "num_tools": len(catalogue.tools),
        "num_questions": len(catalogue.questions),
        "num_world_questions": len(own),
        "num_held_out_tools": len(trained.split.held_out),
        "training_s": round(time.monotonic() - start),
        "training_cpu_s": round(time.process_time() - start_cpu),
        "load": [round(load, 1), round(os.getloadavg()[0], 1)],
        "num_threads": int(os.environ.get("OMP_NUM_THREADS", os.cpu_count() or 1)),
        "losses": [round(loss, 3) for loss in trained.losses],
        "held_out_tools": compare(trained.rankers, catalogue.tools, trained.split.test),
    }, trained


def measure_play(name: str, retriever: Retriever) -> dict[str, Any]:
    """Strict success of a world's flawless expert on test tasks: with the tools that tasks offer,
    with the k nearest, and with a search for them."""
    domain = make_domain(world_of(name))
    ways: dict[str, dict[str, Any]] = {
        "offered": {"type": "offered"},
        **{f"retrieved {k}": {"type": "retrieved", "k": k} for k in (4, 8, 16)},
        "search 8": {"type": "search", "k": 8},
    }
    found: dict[str, Any] = {"num_tools": len(retriever.tools), "num_tasks": NUM_TEST_TASKS}
    for way, tools in ways.items():
        limits = AgentParams.model_validate(AGENT.model_dump() | {"tools": tools})
        played_in = domain if way == "offered" else OfferingDomain(domain, retriever, limits)
        tasks = played_in.tasks("test", NUM_TEST_TASKS)
        expert = expert_policy(played_in, is_flawless=True, reasoning_frac=0.0)
        played = run_episodes(expert, tasks, domain=played_in, limits=limits, seeds=[1] * len(tasks))
        chars = [shown_chars(played_in.tools, task, one) for task, one in zip(tasks, played, strict=True)]
        found[way] = {
            "strict_success": sum(one.is_strict_success for one in played) / len(played),
            "schema_chars_per_episode": round(sum(chars) / len(chars)),
        }
    everything = (json.dumps(tool.schema) for tool in retriever.tools)
    return found | {"schema_chars_of_all_tools": sum(map(len, everything))}


def measure_agents(retriever: Path) -> dict[str, Any]:
    """Success on test tasks of the toy world of an agent from scratch, fine-tuned on demonstrations
    without flaws, with the tools that tasks offer and with the eight nearest."""
    params, found = Path("params.yaml").resolve(), {}
    flaws = {f"world.flaw_rates.{name}": 0.0 for name in ToyFlawRates.model_fields}
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        Path("data/models").mkdir(parents=True)
        Path("data/models/retriever").symlink_to(retriever)
        for way, tools in (("offered", {"type": "offered"}), ("retrieved", {"type": "retrieved", "k": 8})):
            world = load_world("toy", {**flaws, "agent.tools": tools}, params=params)
            summary = evaluate(sft(demonstrate(world), world, to=f"out/{way}"), world, num_samples=1).summary
            kept = ("num_tasks", "strict_success_rate", "strict_ci_low", "strict_ci_high", "success_rate", "failures")
            found[way] = {name: summary[name] for name in kept}
    return found


def shown_chars(tools: Mapping[str, Tool], task: Task, played: Trajectory) -> int:
    """Characters of the schemas that an episode showed: offered, and found by searches."""
    searches = {call.id for message in played.messages for call in message.tool_calls if call.name == SEARCH}
    found = sum(len(message.content) for message in played.messages if message.tool_call_id in searches)
    return found + sum(len(json.dumps(tools[name].schema())) for name in task.tools)


def measure_index(encoder: Encoder, catalogue: Catalogue, *, seed: int) -> dict[str, float]:
    """Recall@10 of the index against exact search, and milliseconds a question on one thread."""
    vectors_T_D = encoder.encode([tool.text for tool in catalogue.tools])
    questions = [question.text for question in catalogue.questions[::10]]
    asked_Q_D = encoder.encode(questions)
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
        "load": round(os.getloadavg()[0], 1),
    }


def measure_encoding(encoder: Encoder, questions: list[str]) -> float:
    """Median milliseconds to encode one question."""
    took = []
    encoder.forget()
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
    parser.add_argument("--to", type=Path, default=Path("out/retriever"), help="where the trained encoder is left")
    parser.add_argument("--seed", type=int, help="of the split and the training; that of params.yaml by default")
    parser.add_argument("--agents", action="store_true", help="trains agents on the retriever that is there")
    parser.add_argument("--again", action="store_true", help="measures the encoder that is there, and trains none")
    parser.add_argument(
        "--splits", type=int, nargs="+", metavar="SEED", help="measures the training by these seeds alone"
    )
    given = parser.parse_args()
    params = load_params()
    seed = params.seed if given.seed is None else given.seed
    settings = params.train_retriever.model_copy(update={"encoder": given.encoder or params.train_retriever.encoder})
    if given.agents:
        write_json(REPORT, json.loads(REPORT.read_text()) | {"agents": measure_agents((given.to / "toy").resolve())})
        return
    catalogue = with_worlds(given.folder)
    if given.splits:
        for one in given.splits:
            figures, _ = measure_training(catalogue, settings, one)
            print(f"seed {one}, {figures['training_s']} s\n{table(figures['held_out_tools'], 'macro_')}\n", flush=True)
            report = json.loads(REPORT.read_text())
            report.setdefault("splits", {})[str(one)] = figures
            write_json(REPORT, report)
        return
    if given.again:
        figures, encoder = json.loads(REPORT.read_text()), Encoder(given.to / "encoder", max_tokens=settings.max_tokens)
    else:
        figures, trained = measure_training(catalogue, settings, seed)
        untrained = {name: one for name, one in trained.rankers.items() if not name.startswith("trained")}
        figures["all_tools"] = compare(untrained, catalogue.tools, catalogue.questions)
        encoder = trained.encoder
        write_json(REPORT, figures)  # after each part: training takes minutes
        save_retriever(given.to, catalogue, settings, encoder)
    print(f"all {figures['num_tools']} tools, mean over questions\n{table(figures['all_tools'], '')}\n")
    print(f"held-out tools, mean over tools\n{table(figures['held_out_tools'], 'macro_')}\n", flush=True)
    figures["index"] = measure_index(encoder, catalogue, seed=seed)
    figures["play"] = {}
    for name in WORLDS:
        kept = Catalogue(catalogue.tools, tuple(examples_of(name, settings.num_world_tasks)))
        save_retriever(given.to / name, kept, settings.model_copy(update={"method": "both"}), encoder)
        about = {"num_example_tasks": settings.num_world_tasks}
        figures["play"][name] = about | measure_play(name, load_retriever(given.to / name))
        write_json(REPORT, figures)
    figures["index"]["encode_ms_median"] = measure_encoding(encoder, [one.text for one in catalogue.questions[:50]])
    write_json(REPORT, figures)
    print(json.dumps({name: figures[name] for name in ("index", "play")}, indent=1))


if __name__ == "__main__":
    main()
