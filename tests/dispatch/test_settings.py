from posttrain.dispatch.settings import DispatchSettings, load_settings

LAUNCH = "infra/accelerate/ddp.yaml"


def settings(**resources):
    return DispatchSettings.model_validate({"target": "local", "targets": {"local": {"type": "local", "num_gpus": 4}}, "resources": resources})


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


def test_a_targets_jobs_are_told_what_it_says():
    target = {"type": "slurm", "environment": {"WANDB_MODE": "offline"}}
    found = DispatchSettings.model_validate({"target": "pool", "targets": {"pool": target}, "resources": {}})
    assert (found.told_on("pool"), found.told_on("other")) == ({"WANDB_MODE": "offline"}, {})


def test_by_default_every_stage_runs_in_one_process(repository):
    assert load_settings(repository).environment_of("train_sft") == {}
