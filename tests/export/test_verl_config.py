"""`posttrain export-env --as verl`: what verl is told, and what is refused because it would be
another method there. That verl takes it, tests/real/test_verl.py tries."""

import pytest
import yaml
from pyarrow import parquet

from posttrain.config.params import parse_params
from posttrain.export.verl_config import differences, verl_config
from posttrain.runtime.exits import ConfigurationError
from posttrain.runtime.plain_yaml import read_yaml
from tests.conftest import REPOSITORY
from tests.console import posttrain

DPO = {"type": "dpo", "max_steps": 80, "batch_size": 32, "beta": 0.5, "loss": "sigmoid"}


def params_with(**changes):
    content = read_yaml(REPOSITORY / "params.yaml")
    for name, value in changes.items():
        *path, last = name.replace("__", ".").split(".")
        section = content
        for key in path:
            section = section[key]
        section[last] = value
    return parse_params(content, source="params.yaml")


def config_with(tmp_path, **changes):
    return verl_config(params_with(**changes), tmp_path, model=tmp_path)


def test_the_default_run_is_told(tmp_path):
    config = config_with(tmp_path)
    assert config["algorithm"]["adv_estimator"] == "grpo"
    assert config["data"]["train_batch_size"] == 16
    actor, rollout = config["actor_rollout_ref"]["actor"], config["actor_rollout_ref"]["rollout"]
    assert (rollout["n"], rollout["temperature"]) == (8, 1.5)
    assert (actor["kl_loss_coef"], actor["kl_loss_type"], actor["loss_agg_mode"]) == (0.1, "low_var_kl", "token-mean")
    assert [line.split()[0] for line in differences(params_with())] == [
        "train_policy.begin_with",
        "sampling.order",
        "The",
        "The",
        "A",
    ]


@pytest.mark.parametrize(
    ("changes", "place", "expected"),
    [
        (
            {"train_policy__algorithm__objective": {"type": "clip", "low": 0.2, "high": 0.28}, "minibatches": 2},
            "actor",
            {"clip_ratio_low": 0.2, "clip_ratio_high": 0.28, "ppo_mini_batch_size": 8},
        ),
        (
            {"train_policy__algorithm__objective": {"type": "cispo", "cap": 5.0}, "updates_per_step": 2},
            "actor",
            {"clip_ratio_high": 4.0, "ppo_epochs": 2},
        ),
        ({"average": "max_tokens"}, "actor", {"loss_agg_mode": "seq-mean-token-sum-norm", "loss_scale_factor": 1024}),
    ],
)
def test_the_objective_is_told_in_its_terms(tmp_path, changes, place, expected):
    changes = {name if "__" in name else f"train_policy__algorithm__{name}": value for name, value in changes.items()}
    found = config_with(tmp_path, **changes)["actor_rollout_ref"][place]
    assert {name: found[name] for name in expected} == expected


def test_leave_one_out_is_rloo_and_refills_filter_groups(tmp_path):
    credit = params_with().train_policy.algorithm.credit.model_dump(mode="json")
    credit |= {"baseline": {"type": "leave_one_out"}, "scale": {"type": "none"}}
    found = config_with(
        tmp_path,
        train_policy__algorithm__credit=credit,
        train_policy__algorithm__sampling={"order": {"type": "uniform"}, "max_refills": 3},
    )
    assert found["algorithm"]["adv_estimator"] == "rloo"
    assert found["algorithm"]["norm_adv_by_std_in_grpo"] is False
    assert found["algorithm"]["filter_groups"] == {"enable": True, "metric": "reward", "max_num_gen_batches": 4}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"train_policy__algorithm__kl": {"type": "loss", "weight": 0.1, "estimator": "unbiased"}},
            "kl is adaptive or unb",
        ),
        ({"train_policy__algorithm__updates_per_step": 2}, "objective is policy_gradient over several updates"),
        ({"train_policy__reward_model_weight": 0.5}, "no counterpart of train_policy.reward_model_weight"),
        ({"agent__memory": {"type": "window", "max_turns": 8, "keep_turns": 4}}, "an episode is one row there"),
        ({"train_policy__algorithm": DPO}, "train_policy.algorithm is dpo, and its main_ppo trains online"),
    ],
)
def test_another_method_is_refused(tmp_path, changes, said):
    with pytest.raises(ConfigurationError, match=said):
        config_with(tmp_path, **changes)


def test_the_command_writes_rows_and_files(tmp_path, monkeypatch):
    monkeypatch.chdir(REPOSITORY)
    assert posttrain("export-env", "calculator", str(tmp_path / "verl"), "--as", "verl").exit_code == 0
    rows = parquet.read_table(tmp_path / "verl" / "rl.parquet").to_pylist()
    assert rows[3]["extra_info"] == {"index": 3, "split": "rl", "task_id": rows[3]["extra_info"]["task_id"]}
    assert rows[0]["prompt"][-1]["role"] == "user"
    [loop] = yaml.safe_load((tmp_path / "verl" / "agent_loop.yaml").read_text())
    assert loop["folder"] == str(tmp_path / "verl")
    assert "The optimizer is AdamW" in (tmp_path / "verl" / "README.md").read_text()
