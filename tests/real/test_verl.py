"""verl's own parser takes the configuration that `posttrain export-env --as verl` writes, and its
own agent loop worker plays the exported world: rewards, tokens and masks are those of our loop.

No training and no vLLM: the servers are a script, the world's expert's messages as tokens.
"""

import json
import os
import subprocess
import sys
import textwrap

import pytest
import yaml

from posttrain.export.world_folder import load_exported, write_world_folder
from posttrain.models.codec import ChatCodec
from posttrain.models.loading import save_model
from posttrain.models.params import ScratchModel
from posttrain.models.scratch import scratch_model
from posttrain.models.tokenizer import train_tokenizer
from posttrain.rollout.episodes import run_episodes
from posttrain.rollout.policy import expert_policy
from posttrain.runtime.plain_yaml import read_yaml
from tests.conftest import REPOSITORY
from tests.tiny import KNOBS

pytestmark = [pytest.mark.needs_trainers, pytest.mark.xdist_group("trainers")]

PACKAGES = REPOSITORY / "infra" / "trainers" / "verl" / "packages"
NUM = 12
PLAY = """
    import asyncio, json, sys
    import numpy as np
    from hydra import compose, initialize_config_dir
    from verl.experimental.agent_loop.agent_loop import AgentLoopWorker
    from verl.protocol import DataProto
    from verl.utils.config import omega_conf_to_dataclass, validate_config
    from verl.workers.rollout.replica import TokenOutput
    from datasets import load_dataset

    folder, scripts = sys.argv[1], {json.dumps(row["prompt"]): row["messages"] for row in json.load(open(sys.argv[2]))}
    with initialize_config_dir(folder, version_base=None):
        config = compose("verl", overrides=sys.argv[3:])
    validate_config(config, use_reference_policy=config.actor_rollout_ref.actor.use_kl_loss, use_critic=False)
    omega_conf_to_dataclass(config.algorithm)

    class Servers:
        left = {}

        async def generate(self, request_id, *, prompt_ids, sampling_params, **_):
            if request_id not in self.left:
                self.left[request_id] = list(scripts[json.dumps(prompt_ids)])
            ids = self.left[request_id].pop(0)
            assert len(ids) <= sampling_params["max_tokens"] and ids[-1] in sampling_params["stop_token_ids"]
            return TokenOutput(token_ids=ids, log_probs=[-0.5] * len(ids), extra_fields={"global_steps": 3})

    async def main():
        worker = AgentLoopWorker(config, Servers())
        rows = list(load_dataset("parquet", data_files=config.data.train_files)["train"])[: len(scripts)]
        columns = {name: np.array([row[name] for row in rows], dtype=object) for name in ("agent_name", "extra_info")}
        columns["raw_prompt"] = np.array([row["prompt"] for row in rows], dtype=object)
        columns["index"] = np.arange(len(rows))
        batch = DataProto.from_dict(non_tensors=columns, meta_info={"global_steps": 3, "validate": False})
        played = await worker.generate_sequences(batch)
        tensors = played.batch
        for place in range(len(rows)):
            ids = tensors["input_ids"][place][tensors["attention_mask"][place].bool()].tolist()
            print("ROW", json.dumps({
                "ids": ids,
                "num_trained": int(tensors["response_mask"][place].sum()),
                "reward": float(tensors["rm_scores"][place].sum()),
                "logprobs": float(tensors["rollout_log_probs"][place].sum()),
            }))

    asyncio.run(main())
"""


@pytest.mark.parametrize("world", ["stocks", "calculator"])
def test_its_worker_plays_the_world_for_the_same_reward(world, tmp_path):
    write_world_folder(world, tmp_path / "verl", "verl")
    played, scripts = _played_by_expert(tmp_path)
    found = _run(tmp_path)

    assert [row["reward"] for row in found] == pytest.approx([one.reward for one in played])
    assert len({one.reward for one in played}) > 1, "some of the episodes have a flaw"
    assert [row["ids"] for row in found] == [row["ids"] for row in scripts]
    assert [row["num_trained"] for row in found] == [sum(map(len, row["messages"])) for row in scripts]
    assert [row["logprobs"] for row in found] == pytest.approx([-0.5 * row["num_trained"] for row in found])


def test_its_parser_takes_other_knobs_and_refuses_a_mean_that_it_does_not_have(tmp_path):
    content = read_yaml(REPOSITORY / "params.yaml")
    algorithm = content["train_policy"]["algorithm"]
    algorithm |= {"minibatches": 2, "objective": {"type": "gspo", "low": 3.0e-4, "high": 4.0e-4}, "average": "episodes"}
    algorithm["kl"] = {"type": "none"}
    algorithm["credit"] |= {"baseline": {"type": "leave_one_out"}, "scale": {"type": "none"}}
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(content))
    write_world_folder(str(tmp_path / "params.yaml"), tmp_path / "verl", "verl")
    _played_by_expert(tmp_path)
    assert len(_run(tmp_path)) == NUM
    with pytest.raises(RuntimeError, match="Invalid loss_agg_mode"):
        _run(tmp_path, "actor_rollout_ref.actor.loss_agg_mode=mean")


def _played_by_expert(tmp_path):
    """Episodes of the world's flawed expert in our loop, and their tokens: the messages as an
    engine would write them, and whole rows. A model of that tokenizer is in `model`."""
    world = load_exported(tmp_path / "verl")
    tasks = world.tasks("rl")[:NUM]
    expert = expert_policy(world.domain, is_flawless=False, reasoning_frac=0.3)
    played = run_episodes(expert, tasks, domain=world.domain, limits=world.limits, seeds=list(range(NUM)))
    width, knobs = world.limits.max_context_tokens, {**KNOBS, "type": "scratch", "vocab_size": 1500}
    tokenizer = train_tokenizer(
        [one.messages for one in played], tool_names=[*world.domain.tools], vocab_size=1500, max_length=width
    )
    more = {"adapter": {"type": "full"}, "gradient_checkpointing": False, "rows_at_once": None, "dtype": "float32"}
    model = ScratchModel.model_validate(knobs | more)
    save_model(
        scratch_model(model, tokenizer=tokenizer, max_context_tokens=width, seed=1), tokenizer, tmp_path / "model"
    )
    codec, rows = ChatCodec(tokenizer), []
    for task, one in zip(tasks, played, strict=True):
        schemas = [world.domain.tools[name].schema() for name in task.tools]
        [row] = codec.encode_rows([(one.messages, schemas)])
        messages = [codec.encode_assistant(message) for message in one.messages if message.role == "assistant"]
        rows.append({"prompt": codec.encode_prompt(task.messages, schemas), "messages": messages, "ids": row.input_ids})
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    return world.reward.score_all(played, tasks), rows


def _run(tmp_path, *overrides):
    """What verl's worker made of the rows, in a process that has verl."""
    files = [str(tmp_path / "verl"), str(tmp_path / "rows.json")]
    command = [
        sys.executable,
        "-c",
        textwrap.dedent(PLAY),
        *files,
        f"actor_rollout_ref.model.path={tmp_path / 'model'}",
    ]
    paths = os.pathsep.join([str(PACKAGES), str(REPOSITORY)])
    ran = subprocess.run(
        [*command, *overrides],
        check=False,
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=300,
    )
    if ran.returncode:
        raise RuntimeError(ran.stderr)
    return [json.loads(line[4:]) for line in ran.stdout.splitlines() if line.startswith("ROW ")]
