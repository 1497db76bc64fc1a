import json

import pytest

from posttrain.dispatch.settings import DispatchSettings, load_settings
from posttrain.runtime.exits import ConfigurationError

LAUNCH = "infra/accelerate/ddp.yaml"


def settings(**resources):
    return DispatchSettings.model_validate(
        {"target": "local", "targets": {"local": {"type": "local", "num_gpus": 4}}, "resources": resources}
    )


def test_a_stage_that_is_launched_gets_a_process_for_each_gpu_it_reserves():
    found = settings(default={"cpus": 2}, train_sft={"gpus": 4, "launch": LAUNCH})
    assert found.environment_of("train_sft") == {"POSTTRAIN_LAUNCH": LAUNCH, "POSTTRAIN_PROCESSES": "4"}
    assert found.environment_of("evaluate") == {}
    assert (found.resources_of("train_sft").gpus, found.resources_of("train_sft").cpus) == (4, 2)


def test_without_gpus_the_number_is_that_of_accelerates_file():
    assert settings(train_sft={"launch": LAUNCH}).environment_of("train_sft") == {"POSTTRAIN_LAUNCH": LAUNCH}


def test_a_stages_own_file_goes_before_the_defaults():
    found = settings(default={"launch": "infra/accelerate/fsdp.yaml"}, train_sft={"launch": LAUNCH})
    assert found.environment_of("train_sft")["POSTTRAIN_LAUNCH"] == LAUNCH
    assert found.environment_of("train_policy")["POSTTRAIN_LAUNCH"] == "infra/accelerate/fsdp.yaml"


def test_the_check_of_the_knobs_is_told_of_the_cards_that_a_stage_has_to_itself():
    found = settings(
        default={"gpu_memory_gb": 24},
        train_sft={"gpus": 1},
        train_policy={"gpus": 1, "gpu_memory_gb": 80},
        evaluate={"gpus": 2},
        train_reward_model={"gpus": 1, "launch": LAUNCH},
    )
    assert found.environment_of("check_params") == {"POSTTRAIN_CARDS": "train_sft=24,train_policy=80"}
    assert found.environment_of("train_policy") == {}
    assert found.resources_of("train_policy").gpus == 1
    assert settings(default={"gpus": 1, "gpu_memory_gb": 40}).environment_of("check_params") == {
        "POSTTRAIN_CARDS": "default=40"
    }
    assert settings(train_sft={"gpus": 1}).environment_of("check_params") == {}


def test_a_targets_jobs_are_told_what_it_says():
    target = {"type": "slurm", "environment": {"WANDB_MODE": "offline"}}
    found = DispatchSettings.model_validate({"target": "backend", "targets": {"backend": target}, "resources": {}})
    assert found.targets["backend"].environment == {"WANDB_MODE": "offline"}


@pytest.mark.parametrize(
    "name", ["WANDB_API_KEY", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID", "db_password", "OPENAI_APIKEY"]
)
def test_a_key_in_the_file_is_refused_and_its_value_not_repeated(tmp_path, name):
    write(tmp_path, {name: "my-value"})
    with pytest.raises(ConfigurationError, match=name) as refused:
        load_settings(tmp_path)
    assert "my-value" not in str(refused.value)


def test_what_only_sounds_like_a_key_is_told(tmp_path):
    told = {
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HOME": "/x",
        "HF_TOKEN_PATH": "/x",
        "SSH_AUTH_SOCK": "/x",
        "AWS_SHARED_CREDENTIALS_FILE": "/x",
    }
    write(tmp_path, told)
    assert load_settings(tmp_path).targets["here"].environment == told


def write(root, environment):
    content = {
        "target": "here",
        "targets": {"here": {"type": "local", "num_gpus": 1, "environment": environment}},
        "resources": {},
    }
    (root / "infra").mkdir()
    (root / "infra" / "dispatch.yaml").write_text(json.dumps(content))


def test_by_default_every_stage_runs_in_one_process(repository):
    assert load_settings(repository).environment_of("train_sft") == {}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("memory_gb", ".inf"),
        ("memory_gb", "1.0e+300"),
        ("time_limit_min", "9" * 30),
        ("source", "{hostPath: {path: 2024-01-01}}"),
        ("source", "{hostPath: {path: .inf}}"),
        ("user", "-1"),
        ("type", '"\\e[2J' + "x" * 10_000 + '"'),
        ("beside", '""'),
    ],
)
def test_what_no_backend_can_pass_on_is_refused_in_plain_letters(tmp_path, key, value):
    chosen = {"source": "{}", "user": "0", "type": "kubernetes", "beside": "k", "memory_gb": "1", "time_limit_min": "1"}
    (tmp_path / "infra").mkdir()
    chosen[key] = value
    lines = [
        *("target: k", f"beside: {chosen['beside']}"),
        *("resources:", "  default:", *(f"    {name}: {chosen[name]}" for name in ("memory_gb", "time_limit_min"))),
        *("targets:", "  k:", "    image: i", *(f"    {name}: {chosen[name]}" for name in ("type", "user"))),
        f"    mounts: [{{path: /a, source: {chosen['source']}}}]",
    ]
    (tmp_path / "infra/dispatch.yaml").write_text("\n".join(lines))
    with pytest.raises(ConfigurationError, match=r"infra/dispatch\.yaml") as refused:
        load_settings(tmp_path)
    assert len(str(refused.value)) < 3_000
    assert "\x1b" not in str(refused.value)


def on_nodes(target, **reserved):
    resources = {"default": {"gpus": 2}, "train_sft": reserved}
    return DispatchSettings.model_validate({"target": "there", "targets": {"there": target}, "resources": resources})


def test_a_stage_on_several_nodes_is_told_their_number_and_the_processes_of_each():
    found = on_nodes({"type": "slurm"}, nodes=3, launch=LAUNCH)
    told = {"POSTTRAIN_LAUNCH": LAUNCH, "POSTTRAIN_PROCESSES": "2", "POSTTRAIN_NODES": "3"}
    assert found.environment_of("train_sft") == told
    assert (found.resources_of("train_sft").nodes, found.resources_of("evaluate").nodes) == (3, 1)


@pytest.mark.parametrize(
    ("target", "reserved", "message"),
    [
        ({"type": "slurm"}, {}, "train_sft reserves 2 nodes and has no launch"),
        ({"type": "local", "num_gpus": 4}, {"launch": LAUNCH}, "its target there is this machine alone"),
        (
            {"type": "kubernetes", "image": "i", "storage": {"url": "s3://bucket"}},
            {"launch": LAUNCH},
            "2 nodes, which have to share a disk",
        ),
    ],
)
def test_nodes_that_cannot_train_together_are_refused_in_a_sentence(target, reserved, message):
    with pytest.raises(ValueError, match=message):
        on_nodes(target, nodes=2, **reserved)


def test_servers_take_gpus_from_the_processes_of_a_stage_that_plays():
    found = settings(train_policy={"gpus": 8, "servers": 4, "launch": LAUNCH}, evaluate={"gpus": 2, "servers": 1})
    variables = {"POSTTRAIN_VLLM_SERVERS": "4", "POSTTRAIN_LAUNCH": LAUNCH, "POSTTRAIN_PROCESSES": "4"}
    assert found.environment_of("train_policy") == variables
    assert found.environment_of("evaluate") == {"POSTTRAIN_VLLM_SERVERS": "1"}
    shared = settings(train_policy={"gpus": 2, "servers": 2, "colocated": True, "launch": LAUNCH})
    variables = {"POSTTRAIN_VLLM_SERVERS": "2", "POSTTRAIN_VLLM_COLOCATED": "1", "POSTTRAIN_PROCESSES": "2"}
    assert shared.environment_of("train_policy") == {**variables, "POSTTRAIN_LAUNCH": LAUNCH}
    assert found.resources_of("train_policy").gpus == 8


@pytest.mark.parametrize(
    ("stage", "reserved", "said"),
    [
        ("train_sft", {"gpus": 4, "servers": 1}, "train_sft has servers, and plays no episodes"),
        ("train_policy", {"gpus": 4, "servers": 4}, "train_policy has 4 servers and 4 gpus"),
        ("train_policy", {"gpus": 1, "servers": 2, "colocated": True}, "2 servers and 1 gpus"),
        ("train_policy", {"gpus": 1, "colocated": True}, "is colocated and has no servers"),
        ("evaluate", {"servers": 1}, "evaluate has 1 servers and 0 gpus"),
    ],
)
def test_servers_that_cannot_be_are_refused(stage, reserved, said):
    with pytest.raises(ValueError, match=said):
        settings(**{stage: reserved})
