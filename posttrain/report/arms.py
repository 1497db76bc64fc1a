"""Records of experiments: the results of each arm (an override with a seed).

`reports/experiments/NAME.json` is committed. It has a digit for each held-out task and policy, so
that a verdict can be made again of any arms without their models.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field

from posttrain.report.knobs import Knobs, setting_of
from posttrain.report.run_reader import CostRate, Measure, Share, Source, Success
from posttrain.report.table import percent

DIGEST_CHARS = 16


class PolicyResult(Success):
    """A policy's held-out figures in one arm.

    `won` and `strict_won` have a digit for each task, in the order of the tasks' ids; `sampled_won`
    has each task's share of successful samples, with blanks between. `tasks` is a digest of the
    ids. Empty texts were not recorded.
    """

    pass_hat_4: Share | None = None
    strict_pass_hat_4: Share | None = None
    costs: dict[str, CostRate] = Field(default_factory=dict)
    tasks: str = ""
    won: str = ""
    strict_won: str = ""
    sampled_won: str = ""

    def outcomes(self, measure: Measure) -> dict[str, float]:
        """Outcomes by task; empty where the measure was not recorded."""
        shares: Sequence[str] = {
            Measure.STRICT: self.strict_won,
            Measure.PLAIN: self.won,
            Measure.SAMPLED: self.sampled_won.split(),
        }[measure]
        return {f"{self.tasks}-{place}": float(share) for place, share in enumerate(shares)}


class Training(Source):
    """Online training of an arm: `means` over all steps and `last` over the last 20, by metric;
    `dev_first` and `dev_last` on dev tasks. `seconds` is None where no cost was recorded."""

    steps: int
    generated_tokens: int
    rollouts: int
    groups: int
    means: dict[str, float]
    last: dict[str, float]
    dev_first: dict[str, float]
    dev_last: dict[str, float]
    seconds: float | None


class Arm(Source):
    """One run of the pipeline: an override of an experiment file with one seed.

    `overrides` are the knobs that it set, `setting` is a digest of all its knobs but the seed,
    `code` of the code of all stages; `sft` is the MD5 of the SFT model that training began from,
    `commit` the last commit of its tree.
    """

    override: str
    seed: int
    overrides: dict[str, Any]
    setting: str
    code: str
    sft: str
    commit: str
    policies: dict[str, PolicyResult]
    training: Training | None = None

    def sentence(self) -> str:
        """`sft 61.0 % → policy 94.4 %`: strict success of each policy that was evaluated."""
        return " → ".join(f"{name} {percent(one.strict.share)}" for name, one in self.policies.items())


class Arms(Source):
    """A whole file of records, by the arm's name."""

    arms: dict[str, Arm] = Field(default_factory=dict)

    def of_setting(self, knobs: Knobs) -> dict[str, Arm]:
        """Arms that ran with these knobs but for the seed."""
        digest = setting_digest(knobs)
        return {name: arm for name, arm in self.arms.items() if arm.setting == digest}

    def seed_rates(self, policy: str, knobs: Knobs, measure: Measure = Measure.STRICT) -> list[float]:
        """A policy's greedy success in each arm of the setting."""
        found = [arm.policies[policy] for arm in self.of_setting(knobs).values() if policy in arm.policies]
        return [(one.strict if measure is Measure.STRICT else one.plain).share for one in found]


def setting_digest(knobs: Knobs) -> str:
    """Digest of all knobs but the seed and those that only the report reads."""
    text = json.dumps(setting_of(knobs), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:DIGEST_CHARS]


def packed(outcomes: Mapping[str, float]) -> dict[str, str]:
    """`tasks` and `won` of a PolicyResult, from success (0 or 1) by task id."""
    names = sorted(outcomes)
    digest = hashlib.md5("\n".join(names).encode(), usedforsecurity=False).hexdigest()
    return {"tasks": digest, "won": "".join(f"{outcomes[name]:.0f}" for name in names)}
