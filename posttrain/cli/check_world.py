"""`posttrain check-world`: checks that a world keeps the contract, a line for each rule."""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from posttrain.cli.command import Commands, add_command
from posttrain.config.named_world import PARAMS, domain_of, read_settings, reward_of, section_of
from posttrain.runtime.exits import ConfigurationError, DataError

if TYPE_CHECKING:
    from posttrain.world_check.check import Checked
    from posttrain.worlds.protocol import Domain


def add_check_world(commands: Commands) -> None:
    command = add_command(commands, "check-world", check_world)
    command.add_argument("name", help="type of the world, or your own as module:name")
    command.add_argument("--params", type=Path, help="file with the world's section and the reward (params.yaml)")
    command.add_argument("--num-tasks", type=int, default=20, help="tasks of each split to check (20)")
    command.add_argument("--worker", action="store_true", help="sub-agents are a policy, too (agent.worker)")
    command.add_argument("--json", dest="as_json", action="store_true", help="one JSON object instead of a page")


def check_world(name: str, params: Path | None, num_tasks: int, worker: bool, as_json: bool) -> None:
    """Check that a world keeps the contract of posttrain/worlds/protocol.py: play its tasks, call
    every tool, and print for each rule whether it holds. Exits with 65 where one is broken."""
    from posttrain.rollout.offers import staffed
    from posttrain.world_check.check import check_world as check
    from posttrain.world_check.tasks import counts_of
    from posttrain.worlds.catalog import splits_of

    if num_tasks < 1:
        raise ConfigurationError(f"--num-tasks is {num_tasks}; a task of each split must be played: give 1 or more")
    settings = read_settings(params)
    section = section_of(name, settings)

    def make() -> "Domain":
        return staffed(domain_of(section)) if worker else domain_of(section)

    domain, elsewhere = make(), None if worker else section  # another process makes the world of its section alone
    rule, whose = reward_of(domain, settings, (params or PARAMS).name)
    checked = check(make, counts_of(section, num_tasks, splits_of(domain)), rule, section=elsewhere)
    broken = [finding for finding in checked.findings if finding.state == "FAILED"]
    record = {**asdict(checked), "reward": whose, "is_kept": not broken}
    print(json.dumps(record, indent=2, ensure_ascii=False) if as_json else page(checked, whose))
    if broken:
        sys.stdout.flush()
        raise DataError(f"the world {checked.world} breaks {len(broken)} rules: mend it before training on it")


def page(checked: "Checked", whose: str) -> str:
    """A line for each rule, the reason below it where it is broken, and what was measured."""
    from posttrain.runtime.control_chars import escape_control_chars

    splits = ", ".join(f"{number} {split}" for split, number in checked.num_tasks.items())
    lines = [f"{escape_control_chars(checked.world)}: {splits or 'no tasks'}; {whose}"]
    if checked.has:
        has = [part for part, is_there in checked.has.items() if is_there]
        lacks = [part for part, is_there in checked.has.items() if not is_there]
        lines.append(f"has {', '.join(has) or 'no optional part'}; without {', '.join(lacks) or 'none'}")
    lines.append("")
    for finding in checked.findings:
        why = escape_control_chars(finding.why)
        if finding.state == "FAILED":
            lines += [f"{finding.state:<9}  {finding.rule}", f"{'':<11}{why}"]
        else:
            lines.append(f"{finding.state:<9}  {finding.rule}{f' (not tried: {why})' if why else ''}")
    if checked.facts:
        lines += ["", f"{checked.facts['num_episodes']} episodes, {checked.facts['episodes_per_s']:.0f} a second"]
        if (most := checked.facts["max_gold_messages"]) is not None:
            lines[-1] += f"; the expert writes up to {most} messages in one (agent.max_turns)"
    states = [finding.state for finding in checked.findings]
    num_broken, num_untried = states.count("FAILED"), states.count("not tried")
    lines.append(f"{states.count('ok')} rules hold, {num_broken} broken, {num_untried} not tried")
    return "\n".join(lines)
