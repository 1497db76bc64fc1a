"""`posttrain judge check`: how far a model can be trusted as a judge."""

import json
from pathlib import Path

from posttrain.cli.command import Commands, add_command, add_commands
from posttrain.runtime.exits import ConfigurationError, DataError

PREFERENCES = Path("data/preferences")


def add_judge(commands: Commands) -> None:
    group = add_commands(
        commands, "judge", "Judge episodes by a model behind an OpenAI-compatible endpoint, and check it against labels"
    )
    command = add_command(group, "check", check)
    command.add_argument("model", help="as the endpoint (OPENAI_BASE_URL) calls it")
    command.add_argument("--rubric", type=Path, help="a YAML file with a text for each dimension")
    command.add_argument("--pairs", type=Path, default=PREFERENCES / "pairs.parquet", help="of preferences")
    command.add_argument("--episodes", type=Path, default=PREFERENCES / "samples.parquet", help="that the world graded")
    command.add_argument("--num", type=int, default=50, help="episodes, and pairs, to ask about (50)")
    command.add_argument("--json", dest="as_json", action="store_true", help="one JSON object instead of a table")


def check(model: str, rubric: Path | None, pairs: Path, episodes: Path, num: int, as_json: bool) -> None:
    """Measure a judge against people and the world: agreement, kappa, biases, cost. Its answers are
    kept, and not paid for twice."""
    if num < 1:
        raise ConfigurationError("--num is 1 or more")
    from posttrain.data.preferences import read_pairs
    from posttrain.data.schemas import read_trajectories
    from posttrain.report.judge_check import check_judge, judge_text
    from posttrain.rollout.judge import Judge

    graded = (
        [row for row in read_trajectories(episodes) if row.trajectory.outcome is not None] if episodes.exists() else []
    )
    said = read_pairs(pairs) if pairs.exists() else []
    if not graded and not said:
        raise DataError(f"neither {pairs} nor {episodes} has anything to ask about: run sample_preferences first")
    good, bad = ([row for row in graded if row.trajectory.is_success is side] for side in (True, False))
    judge = Judge(model, rubric=rubric)
    found = check_judge(judge, [*good[: (num + 1) // 2], *bad[: num // 2]], said[:num])
    print(json.dumps(found) if as_json else judge_text(found))
