"""Configuration of verl's `main_ppo` (0.9) that trains as `params.yaml` says: the same batches,
advantages, loss and rate, on episodes that `verl_agent_loop` plays. What verl has no counterpart
of is refused where it would be another method, and told where it is a detail."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from posttrain.config.params import Params
from posttrain.models.params import LoraAdapter
from posttrain.runtime.exits import ConfigurationError
from posttrain.train.advantages.baselines import GroupStd, LeaveOneOut
from posttrain.train.advantages.credit import EpisodeCredit
from posttrain.train.losses import Cispo, Clip, Gspo, KlLoss, PolicyGradient, Sapo
from posttrain.train.online.params import LossMean, OnlineParams
from posttrain.types import Task

AGENT = "posttrain"  # the name of our agent loop in verl
VERL, AGENT_LOOPS, ROWS = "verl.yaml", "agent_loop.yaml", "{split}.parquet"  # files of the folder
_MEANS: Mapping[LossMean, str] = {
    "tokens": "token-mean",
    "episodes": "seq-mean-token-mean",
    "max_tokens": "seq-mean-token-sum-norm",
}
_ESTIMATORS = {"k3": "low_var_kl", "k2": "k2"}
_NO_CLIP = 1e6  # a bound that no ratio meets


def agent_loops(folder: Path) -> list[dict[str, str]]:
    """The content of `AGENT_LOOPS`."""
    target = "posttrain.export.verl_agent_loop.WorldAgentLoop"
    return [{"name": AGENT, "_target_": target, "folder": str(folder)}]


def verl_rows(tasks: Sequence[Task]) -> list[dict[str, Any]]:
    """A row of verl's dataset for each task. The agent loop reads the task itself; the prompt is
    for verl's log."""
    return [
        {
            "data_source": AGENT,
            "prompt": [{"role": message.role, "content": message.content} for message in task.messages],
            "agent_name": AGENT,
            "extra_info": {"index": index, "split": task.split, "task_id": task.task_id},
        }
        for index, task in enumerate(tasks)
    ]


def verl_config(params: Params, folder: Path, *, model: Path) -> dict[str, Any]:
    """What is written over verl's `ppo_trainer` to train `model` with the files in `folder`. Raises
    ConfigurationError for a method that verl does not have."""
    algorithm, agent = params.train_policy.algorithm, params.agent
    for refusal in _refused(params):
        raise ConfigurationError(f"verl cannot train as params.yaml says: {refusal}")
    assert isinstance(algorithm, OnlineParams)
    assert isinstance(algorithm.credit, EpisodeCredit)
    optimizer, width = params.train_policy, agent.max_context_tokens
    return {
        "defaults": ["ppo_trainer", "_self_"],
        "hydra": {"searchpath": ["pkg://verl.trainer.config"]},
        "data": {
            "train_files": str(folder / ROWS.format(split="rl")),
            "val_files": str(folder / ROWS.format(split="dev")),
            "val_max_samples": algorithm.dev.num_tasks,
            "train_batch_size": algorithm.tasks_per_step,
            "max_prompt_length": width,
            "max_response_length": width,
            "seed": params.seed,
        },
        "algorithm": {
            "adv_estimator": "rloo" if isinstance(algorithm.credit.baseline, LeaveOneOut) else "grpo",
            "norm_adv_by_std_in_grpo": isinstance(algorithm.credit.scale, GroupStd),
            "filter_groups": _filter(algorithm),
            "rollout_correction": {"rollout_is": "token", "rollout_is_threshold": algorithm.importance_cap},
        },
        "actor_rollout_ref": {
            "model": {
                "path": str(model),
                "enable_gradient_checkpointing": params.model.gradient_checkpointing,
                **_lora(params),
            },
            "actor": {
                "ppo_mini_batch_size": algorithm.tasks_per_step // algorithm.minibatches,
                "ppo_epochs": algorithm.updates_per_step,
                "use_dynamic_bsz": True,
                "ppo_max_token_len_per_gpu": 4 * width,
                "loss_agg_mode": _MEANS[algorithm.average],
                "loss_scale_factor": width if algorithm.average == "max_tokens" else None,
                "entropy_coeff": algorithm.entropy_bonus,
                **_objective(algorithm),
                **_divergence(algorithm),
                "optim": {
                    "lr": optimizer.lr,
                    "betas": list(optimizer.betas),
                    "weight_decay": optimizer.weight_decay,
                    "clip_grad": optimizer.max_grad_norm,
                    "lr_warmup_steps_ratio": optimizer.lr_warmup_frac,
                    "lr_scheduler_type": "cosine" if optimizer.lr_schedule == "cosine" else "constant",
                },
            },
            "rollout": {
                "name": "vllm",
                "n": algorithm.group_size,
                "temperature": algorithm.temperature,
                "max_model_len": width,
                "tensor_model_parallel_size": 1,
                "calculate_log_probs": True,
                "agent": {"default_agent_loop": AGENT, "agent_loop_config_path": str(folder / AGENT_LOOPS)},
            },
        },
        "trainer": {
            "total_training_steps": algorithm.max_steps,
            "total_epochs": algorithm.max_steps,  # an epoch has a step at least
            "save_freq": params.train_policy.checkpoint_every_steps,
            "test_freq": algorithm.dev.every_steps,
            "project_name": "posttrain",
            "experiment_name": params.world.type,
            "logger": ["console"],
        },
    }


def differences(params: Params) -> list[str]:
    """What verl does otherwise than `params.yaml` says, a sentence each."""
    return list(_told(params))


def _refused(params: Params) -> Iterator[str]:
    policy, agent = params.train_policy, params.agent
    algorithm = policy.algorithm
    if not isinstance(algorithm, OnlineParams):
        yield f"train_policy.algorithm is {algorithm.type}, and its main_ppo trains online"
        return
    credit = algorithm.credit
    if not isinstance(credit, EpisodeCredit) or credit.drop != "none" or credit.equal_groups.type != "by_baseline":
        yield "credit is not {type: episode, drop: none, equal_groups: {type: by_baseline}}"
    elif credit.baseline.type not in ("group_mean", "leave_one_out") or credit.scale.type == "batch_std":
        yield f"credit has {credit.baseline.type} over {credit.scale.type}; it has group_mean and leave_one_out"
    elif credit.baseline.type == "leave_one_out" and credit.scale.type != "none":
        yield "credit divides leave_one_out by a deviation; set scale to {type: none}"
    elif isinstance(algorithm.objective, PolicyGradient) and algorithm.updates_per_step * algorithm.minibatches > 1:
        yield "objective is policy_gradient over several updates, which it always clips; set clip"
    if algorithm.kl.type == "adaptive" or (isinstance(algorithm.kl, KlLoss) and algorithm.kl.estimator == "unbiased"):
        yield "kl is adaptive or unbiased; take {type: loss, estimator: k3 or k2}"
    others = {
        "algorithm.join": algorithm.join.type != "none",
        "algorithm.constraints": bool(algorithm.constraints),
        "algorithm.retry": algorithm.retry.type != "none",
        "reward_model_weight": bool(policy.reward_model_weight),
        "replay_buffer": policy.replay_buffer is not None,
    }
    yield from (f"it has no counterpart of train_policy.{name}" for name, is_set in others.items() if is_set)
    if agent.memory.type != "none" or agent.worker is not None:
        yield "an episode is one row there: set agent.memory to {type: none} and agent.worker to null"
    if agent.tools.type != "offered":
        yield f"agent.tools is {agent.tools.type}; set it to {{type: offered}}"
    if isinstance(params.model.adapter, LoraAdapter) and params.model.adapter.quantization != "none":
        yield "model.adapter.quantization is set; set it to none"


def _told(params: Params) -> Iterator[str]:
    policy = params.train_policy
    algorithm = policy.algorithm
    assert isinstance(algorithm, OnlineParams)
    if policy.begin_with is not None:
        yield f"train_policy.begin_with ({policy.begin_with.type}) is not run: name its model as the one to train."
    if algorithm.sampling.order.type != "uniform":
        yield f"sampling.order is uniform there, and not {algorithm.sampling.order.type}."
    if policy.optimizer != "adamw":
        yield f"The optimizer is AdamW, and not {policy.optimizer}: choose another lr."
    if policy.lr_schedule == "linear":
        yield "The rate stays, and does not fall linearly."
    if algorithm.max_generated_tokens is not None:
        yield "max_generated_tokens does not end it; max_steps does."
    if algorithm.max_staleness:
        yield "max_staleness is 0 there; trainer.v1.trainer_mode=separate_async is verl's way to play ahead."
    if isinstance(algorithm.credit, EpisodeCredit) and algorithm.credit.scale.type == "group_std":
        yield "A group's deviation is that of a sample (n - 1) plus 1e-6."
    if isinstance(params.model.adapter, LoraAdapter) and params.model.adapter.dropout:
        yield "The adapters have no dropout."


def _filter(algorithm: OnlineParams) -> dict[str, Any]:
    """DAPO's dynamic sampling."""
    refills = algorithm.sampling.max_refills
    return {"enable": refills > 0, "metric": "reward", "max_num_gen_batches": 1 + refills if refills else 0}


def _lora(params: Params) -> dict[str, Any]:
    adapter = params.model.adapter
    if not isinstance(adapter, LoraAdapter):
        return {}
    return {"lora_rank": adapter.r, "lora_alpha": adapter.alpha, "target_modules": list(adapter.target_modules)}


def _objective(algorithm: OnlineParams) -> dict[str, Any]:
    match algorithm.objective:
        case Clip(low=low, high=high):
            return {"clip_ratio_low": low, "clip_ratio_high": high, "clip_ratio_c": _NO_CLIP}
        case Gspo(low=low, high=high):
            return {"policy_loss": {"loss_mode": "gspo"}, "clip_ratio_low": low, "clip_ratio_high": high}
        case Cispo(cap=cap):
            return {"policy_loss": {"loss_mode": "cispo"}, "clip_ratio_low": 1.0, "clip_ratio_high": cap - 1.0}
        case Sapo(positive=positive, negative=negative):
            return {"policy_loss": {"loss_mode": "sapo"}, "tau_pos": positive, "tau_neg": negative}
        case _:  # the ratio is 1 in the one update of a step
            return {}


def _divergence(algorithm: OnlineParams) -> dict[str, Any]:
    kl = algorithm.kl
    if not isinstance(kl, KlLoss):
        return {}
    return {"use_kl_loss": True, "kl_loss_coef": kl.weight, "kl_loss_type": _ESTIMATORS[kl.estimator]}
