"""Headline numbers for `dvc metrics`, and training curves as tables for `dvc plots`.

All other metrics stay in files that DVC does not take for metrics: nobody reads a comparison of
hundreds of columns.
"""

import csv
import io
from collections.abc import Sequence
from statistics import fmean

from posttrain.report.page import Reports
from posttrain.report.run_reader import DpoLine, GrpoLine, Source


def headline(reports: Reports) -> dict[str, float | None]:
    """Headline numbers by name, shares unless it is said otherwise; None where the run has none.

    `…strict_success` of held-out tasks, one greedy episode each; `…strict_pass_hat_4`: all of four
    sampled episodes succeed strictly, which falls where success is luck; the same without strict;
    `policy_paraphrase_…`: the same tasks in words that no demonstration used; `policy_turns`: agent
    messages per episode. `sft_dev_loss`: the lowest on dev demonstrations, nats per agent token.
    `grpo_reward_std`: mean spread of the reward within a group, and `grpo_frac_reward_zero_std` the
    groups without any, which teach nothing. `reward_model_accuracy` on held-out pairs with the
    ends of its interval at 95 %, and `reward_model_best_of_4_gain`: success of the one of four
    episodes that it picks, less that of one at random, -1 … 1.
    """
    sft, policy = reports.evaluations["sft"], reports.evaluations["policy"]
    grpo = [line for line in reports.policy_lines if isinstance(line, GrpoLine)]
    reward_model = reports.reward_model
    return {
        "policy_strict_success": policy.strict_success_rate,
        "policy_strict_pass_hat_4": policy.strict_pass_hat_4,
        "policy_success": policy.success_rate,
        "policy_pass_hat_4": policy.pass_hat_4,
        "policy_paraphrase_strict_success": policy.paraphrase.strict_success_rate if policy.paraphrase else None,
        "policy_paraphrase_success": policy.paraphrase.success_rate if policy.paraphrase else None,
        "policy_turns": policy.turns_mean,
        "sft_strict_success": sft.strict_success_rate,
        "sft_strict_pass_hat_4": sft.strict_pass_hat_4,
        "sft_success": sft.success_rate,
        "sft_pass_hat_4": sft.pass_hat_4,
        "sft_dev_loss": min((line.eval_loss for line in reports.sft_lines if line.eval_loss is not None), default=None),
        "grpo_reward_std": fmean(line.reward_std for line in grpo) if grpo else None,
        "grpo_frac_reward_zero_std": fmean(line.frac_reward_zero_std for line in grpo) if grpo else None,
        "reward_model_accuracy": reward_model.accuracy,
        "reward_model_accuracy_low": reward_model.accuracy_low,
        "reward_model_accuracy_high": reward_model.accuracy_high,
        "reward_model_best_of_4_gain": best.picked - best.random if (best := reward_model.best_of_4) else None,
    }


def curves(reports: Reports) -> dict[str, str]:
    """CSV texts by the names in `plots` of `dvc.yaml`, a row per step.

    Training rows and dev demonstrations are two files, because DVC draws an empty cell as 0. The
    file of the algorithm that did not run has no rows.
    """
    sft, policy = reports.sft_lines, reports.policy_lines
    zero_std = "frac_reward_zero_std"
    grpo = ("reward_mean", "reward_std", zero_std, *(f"{zero_std}_{part}" for part in ("all_bad", "all_good", "other")))
    return {
        "sft_train.csv": _table(("loss",), [line for line in sft if line.loss is not None]),
        "sft_dev.csv": _table(("eval_loss",), [line for line in sft if line.eval_loss is not None]),
        "grpo.csv": _table(grpo, [line for line in policy if isinstance(line, GrpoLine)]),
        "dpo.csv": _table(("loss", "pair_accuracy"), [line for line in policy if isinstance(line, DpoLine)]),
    }


def _table(fields: Sequence[str], lines: Sequence[Source]) -> str:
    text = io.StringIO()
    table = csv.DictWriter(text, ("step", *fields), extrasaction="ignore", lineterminator="\n")
    table.writeheader()
    table.writerows(line.model_dump() for line in lines)
    return text.getvalue()
