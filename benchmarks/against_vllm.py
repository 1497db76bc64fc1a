"""Times a step's episodes by the torch engine and through a vLLM server on the same processors.

The same SFT model, tasks, world, sampling and agent loop; one thread computes on either side,
though vLLM's other processes (HTTP, scheduler) and the client may run beside it. CPU-seconds are
those of all processes. A third side sends such a step's requests with the lightest client there is:
bodies made beforehand, all messages of a turn at once, answers not looked at. That is vLLM alone;
what the second side has more is our loop.
"""

import asyncio
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import aiohttp
import torch

from benchmarks.vllm_process import VLLM, VllmProcess
from posttrain.config.params import Params, load_params
from posttrain.data.schemas import read_tasks
from posttrain.models.loading import load_codec, load_model
from posttrain.rewards.total import load_reward
from posttrain.rollout.engines.vllm_server import BASE
from posttrain.rollout.engines.weight_files import write_served_folder
from posttrain.rollout.episode_sampler import EpisodeSampler, Stream, episode_seeds
from posttrain.train.online.params import OnlineParams
from posttrain.types import Task, Trajectory
from posttrain.worlds.catalog import make_domain, score_names

SFT = Path("data/models/sft")
TASKS = Path("data/raw/tasks.parquet")
PORT = 8621
NUM_ROUNDS = 7
TORCH = "torch engine"


def main() -> None:
    if not (VLLM / ".venv").exists():
        print(
            "rollouts against vLLM: not measured, its environment is not there; "
            "infra/vllm/setup.sh makes it (two minutes, 2.5 GB)"
        )
        return
    torch.set_num_threads(1)  # threads that wait for each other on busy cores would count as CPU time
    params = load_params()
    algorithm = params.train_policy.algorithm
    if not isinstance(algorithm, OnlineParams):
        raise SystemExit("train_policy.algorithm is not online; the benchmark needs its batch")
    tasks = [task for task in read_tasks(TASKS, "rl")[: algorithm.tasks_per_step] for _ in range(algorithm.group_size)]
    with tempfile.TemporaryDirectory() as folder:
        write_served_folder(SFT, load_model(SFT, dtype="float32"), Path(folder) / "served")
        with closing(VllmProcess(Path(folder) / "served", PORT, Path(folder))) as server:
            server.wait()
            rounds = _compare(server, params, algorithm.temperature, tasks, Path(folder))
    print(
        f"rollouts: {algorithm.tasks_per_step} x {algorithm.group_size} episodes, "
        f"temperature {algorithm.temperature:g}, float32, one thread "
        f"computes, caches empty; medians of {NUM_ROUNDS} rounds"
    )
    print("  vLLM as infra/vllm/serve.sh starts it: eager, 128 sequences at once, prefix cache in blocks of 32 tokens")
    ours, *others = [_report(name, side) for name, side in rounds.items()]
    for name, other in zip(list(rounds)[1:], others, strict=True):
        print(f"  ratio to {name}: {ours[0] / other[0]:.2f} by CPU-seconds, {ours[1] / other[1]:.2f} by seconds")


class Round(NamedTuple):
    """`client_s` and `server_s` are CPU-seconds, of this process and of the server's."""

    num_tokens: int
    client_s: float
    server_s: float
    wall_s: float


def _compare(
    server: VllmProcess, params: Params, temperature: float, tasks: Sequence[Task], folder: Path
) -> dict[str, list[Round]]:
    """The rounds of each side, taken in turn, so that a busy minute of the machine meets them all;
    without the first, which warms up."""
    by_torch = _sampler(params, temperature, POSTTRAIN_ENGINE="torch")
    environment = {
        "POSTTRAIN_ENGINE": "vllm",
        "POSTTRAIN_VLLM_URLS": server.url,
        "POSTTRAIN_VLLM_FOLDER": str(folder / "weights"),
    }
    by_vllm = _sampler(params, temperature, **environment)
    recorded = by_torch.run(tasks, episode_seeds(Stream.MEASUREMENT, NUM_ROUNDS + 1, count=len(tasks)))
    bodies = _bodies(recorded, temperature)
    sides: dict[str, Callable[[Sequence[int]], int]] = {
        TORCH: lambda seeds: _num_written(by_torch.run(tasks, seeds)),
        "vLLM": lambda seeds: _num_written(by_vllm.run(tasks, seeds)),
        "vLLM, lightest client": lambda _: (
            asyncio.run(_send(f"{server.url}/inference/v1/generate", bodies)) or _num_written(recorded)
        ),
    }
    rounds: dict[str, list[Round]] = {name: [] for name in sides}
    for index in range(NUM_ROUNDS + 1):
        seeds = episode_seeds(Stream.MEASUREMENT, index, count=len(tasks))
        for name, play in sides.items():
            server.post("/reset_prefix_cache")  # as every update of the weights does
            client_s, server_s, start = time.process_time(), server.cpu_s(), time.perf_counter()
            num_tokens = play(seeds)
            wall_s, client_s = time.perf_counter() - start, time.process_time() - client_s
            rounds[name].append(
                Round(num_tokens, client_s, server.cpu_s() - server_s if name != TORCH else 0.0, wall_s)
            )
    return {name: side[1:] for name, side in rounds.items()}


def _report(name: str, rounds: Sequence[Round]) -> tuple[float, float]:
    """Prints and returns written tokens a CPU-second and a second, the median of the rounds."""
    client_s, server_s = (
        statistics.median(seconds) for seconds in zip(*((one.client_s, one.server_s) for one in rounds), strict=True)
    )
    per_cpu_s = statistics.median(one.num_tokens / (one.client_s + one.server_s) for one in rounds)
    per_s = statistics.median(one.num_tokens / one.wall_s for one in rounds)
    seconds = f"{client_s:.2f} s here and {server_s:.2f} s in the server"
    print(f"  {name:22} {per_cpu_s:6.0f} written tokens a CPU-second ({seconds}), {per_s:6.0f} a second")
    return per_cpu_s, per_s


def _sampler(params: Params, temperature: float, **environment: str) -> EpisodeSampler:
    os.environ.update(environment)
    domain, model = make_domain(params.world), load_model(SFT, dtype="float32")
    sampler = EpisodeSampler(
        model,
        load_codec(SFT),
        domain=domain,
        reward=load_reward(params.reward, score_names(domain)),
        limits=params.agent,
        temperature=temperature,
    )
    sampler.refresh()  # makes the engine that the environment names now
    return sampler


def _num_written(played: Sequence[Trajectory]) -> int:
    return sum(sum(one.mask) for one in played)


def _bodies(played: Sequence[Trajectory], temperature: float) -> list[list[bytes]]:
    """The requests of these episodes, a list for each turn; the messages are as long as they
    were."""
    turns: list[list[bytes]] = [[] for _ in range(max(len(one.turns) for one in played))]
    for one in played:
        place = 0
        for turns_so_far, turn in zip(turns, one.turns, strict=False):
            place += turn.num_read
            sampling = {
                "temperature": temperature,
                "max_tokens": turn.num_written,
                "ignore_eos": True,
                "seed": place,
                "logprobs": 0,
            }
            body = {
                "model": BASE,
                "token_ids": list(one.token_ids[:place]),
                "sampling_params": sampling | {"detokenize": False},
            }
            turns_so_far.append(json.dumps(body).encode())
            place += turn.num_written
    return turns


async def _send(url: str, turns: Sequence[Sequence[bytes]]) -> None:
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), headers={"Content-Type": "application/json"}
    ) as session:

        async def send(body: bytes) -> None:
            async with session.post(url, data=body) as response:
                await response.read()
                response.raise_for_status()

        for bodies in turns:
            await asyncio.gather(*map(send, bodies))


if __name__ == "__main__":
    main()
