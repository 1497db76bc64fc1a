"""`posttrain check-world`: whether a world keeps the contract, a line for each rule."""

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posttrain.cli.command import Commands, add_command
from posttrain.config.named_world import PARAMS, made, read_settings, reward_of, section_of
from posttrain.runtime.exits import ConfigurationError, DataError

if TYPE_CHECKING:
    from posttrain.world_check.check import Checked


def add_check_world(commands: Commands) -> None:
    """The command `check-world`."""
    command = add_command(commands, "check-world", check_world)
    command.add_argument("name", help="a world's type, or your own as module:name")
    command.add_argument("--params", type=Path, help="whose world and reward count; params.yaml by default")
    command.add_argument("--num-tasks", type=int, default=20, help="of each split (20)")
    command.add_argument("--json", dest="as_json", action="store_true", help="one JSON object instead of a page")


def check_world(name: str, params: Path | None, num_tasks: int, as_json: bool) -> None:
    """Does this world keep the contract of posttrain/worlds/protocol.py? Plays it, calls every tool
    of it, and says of each rule whether it holds; exits with 65 where one is broken."""
    from posttrain.world_check.check import check_world as check
    from posttrain.world_check.tasks import counts_of

    if num_tasks < 1:
        raise ConfigurationError(f"--num-tasks is {num_tasks}; one task of each split is the least that can be played")
    settings = read_settings(params)
    section = section_of(name, settings)
    domain = made(section)
    rule, whose = reward_of(domain, settings, (params or PARAMS).name)
    checked = check(lambda: made(section), counts_of(section, num_tasks), rule, section=section)
    print(json.dumps(_record(checked, whose), indent=2, ensure_ascii=False) if as_json else page(checked, whose))
    broken = [finding for finding in checked.findings if finding.state == "FAILED"]
    if broken:
        sys.stdout.flush()
        raise DataError(
            f"the world {checked.world} breaks {len(broken)} of its rules: mend them before it is trained on"
        )


def page(checked: "Checked", whose: str) -> str:
    """A line for each rule, the reason below it, and what was measured."""
    from posttrain.runtime.control_chars import escape_control_chars

    facts = checked.facts
    splits = ", ".join(f"{number} {split}" for split, number in checked.num_tasks.items())
    lines = [f"{escape_control_chars(checked.world)}: {splits or 'no tasks'}; {whose}"]
    if checked.has:
        has = [part for part, is_there in checked.has.items() if is_there]
        lacks = [part for part, is_there in checked.has.items() if not is_there]
        lines.append(f"has {', '.join(has) or 'no optional part'}; without {', '.join(lacks) or 'none'}")
    lines.append("")
    for finding in checked.findings:
        told = f" ({escape_control_chars(finding.why)})" if finding.state == "not tried" else ""
        lines.append(f"{finding.state:<9}  {finding.rule}{told}")
        if finding.state == "FAILED":
            lines.append(f"{'':<11}{escape_control_chars(finding.why)}")
    if facts:
        times = [f"{part} {_ms(facts[f'{part}_ms'])}" for part in ("open", "call", "grade")]
        lines += ["", f"{' · '.join(times)} (medians) · {facts['episodes_per_s']:.0f} episodes/s"]
        if (most := facts["max_gold_messages"]) is not None:
            lines[-1] += f" · gold takes up to {most:g} messages (agent.max_turns)"
    states = [finding.state for finding in checked.findings]
    num_broken, num_untried = states.count("FAILED"), states.count("not tried")
    lines.append(f"{states.count('ok')} rules hold, {num_broken} broken, {num_untried} not tried")
    return "\n".join(lines)


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.2g} ms"


def _record(checked: "Checked", whose: str) -> Mapping[str, Any]:
    return {**asdict(checked), "reward": whose, "is_kept": checked.is_kept}
