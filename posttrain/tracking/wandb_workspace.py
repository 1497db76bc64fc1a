"""Saves a workspace in a W&B project: panels for training health, policies and evaluations.

`python -m posttrain.tracking.wandb_workspace TEAM/PROJECT`, in an environment that has
`wandb-workspaces`; this repository does not need it, nor that environment this repository's.
"""

import argparse
import importlib.util
from typing import Any

from posttrain.runtime.exits import ConfigurationError, exit_codes

NAME = "Post-training"
# Lines over the step, by section and title.
LINES: dict[str, dict[str, tuple[str, ...]]] = {
    "Health": {
        "Spread of rewards within a group": ("reward_std",),
        "Groups whose rewards are all equal": (
            "frac_reward_zero_std",
            "frac_reward_zero_std_all_bad",
            "frac_reward_zero_std_all_good",
            "frac_reward_zero_std_other",
        ),
        "Tokens that get a gradient": ("frac_tokens_nonzero_advantage",),
        "Entropy (nats per token)": ("entropy",),
        "KL to the first policy (nats per token)": ("kl",),
        "Definition of these": ("definition_version",),
    },
    "Policy": {
        "Success": ("strict_success", "success"),
        "Reward": ("reward_mean",),
        "Turns": ("turns",),
        "Tokens of an episode": ("length",),
    },
    "SFT": {"Loss": ("loss", "eval_loss")},
}
FIGURES = (  # of an evaluation
    "strict_success_rate",
    "success_rate",
    "strict_pass_hat_4",
    "pass_hat_4",
    "num_lost",
    "reward_mean",
    "turns_mean",
)


def save_workspace(entity: str, project: str) -> str:
    """Save the workspace. Returns its address."""
    panels: Any = importlib.import_module("wandb_workspaces.reports.v2")
    workspaces: Any = importlib.import_module("wandb_workspaces.workspaces")
    sections = [
        workspaces.Section(
            name=name,
            panels=[panels.LinePlot(title=title, x="step", y=list(metrics)) for title, metrics in lines.items()],
            is_open=True,
        )
        for name, lines in LINES.items()
    ]
    evaluations = [panels.BarPlot(title=figure, metrics=[figure]) for figure in FIGURES]
    episodes = panels.WeavePanelSummaryTable(table_name="episodes")
    page = panels.MediaBrowser(media_keys=["report"])
    sections += [workspaces.Section(name="Evaluations", panels=[*evaluations, episodes, page], is_open=True)]
    saved = workspaces.Workspace(
        entity=entity, project=project, name=NAME, sections=sections, auto_generate_panels=True
    ).save()
    return str(saved.url)


def main() -> None:
    """Save the workspace and print its address."""
    parser = argparse.ArgumentParser("posttrain.tracking.wandb_workspace", description="Save W&B's workspace.")
    parser.add_argument("place", metavar="TEAM/PROJECT")
    given = parser.parse_args()
    with exit_codes():
        entity, _, project = given.place.partition("/")
        if not entity or not project:
            raise ConfigurationError(f"{given.place!r} is no TEAM/PROJECT: the address of a project in W&B has both")
        if importlib.util.find_spec("wandb_workspaces") is None:
            raise ConfigurationError(
                "wandb-workspaces is not installed here, and it alone can save a workspace: "
                "`pip install wandb-workspaces` in an environment of its own, and run it with that one's python"
            )
        print(save_workspace(entity, project))


if __name__ == "__main__":
    main()
