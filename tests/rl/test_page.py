"""What docs/learning-online.md says stands in params.yaml is accepted there, and is what it is
called."""

import copy
import re
from pathlib import Path

import pytest
import yaml

from benchmarks.methods import CREDITS, credit_of
from posttrain.params import parse_params
from posttrain.rl.params import OnlineParams

PAGE = (Path(__file__).parents[2] / "docs" / "learning-online.md").read_text(encoding="utf-8")
DEFAULT = {"type": "online", **yaml.safe_load(OnlineParams.example)}
ROWS = [
    (cells[0].strip(), lines)
    for cells in (row.strip("|").split("|") for row in PAGE.splitlines() if row.startswith("|"))
    if (lines := re.findall(r"`([a-z_.]+): ([^`]+)`", "|".join(cells)))
]


def method_of(name):
    """`Dr. GRPO` is `dr_grpo`; what stands in brackets is no part of it."""
    return re.sub(r"\W+", "_", name.partition(" (")[0]).lower()


def test_the_block_of_the_page_is_the_example():
    block = re.search(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    assert yaml.safe_load(block[1])["train_policy"]["algorithm"] == DEFAULT


@pytest.mark.parametrize(("name", "lines"), ROWS, ids=[f"{name} {lines[0][0]}"[:40] for name, lines in ROWS])
def test_each_row_of_the_page_is_accepted_and_credits_as_what_it_is_called(repository, name, lines):
    content = yaml.safe_load((repository / "params.yaml").read_text(encoding="utf-8"))
    content["train_policy"] |= {"algorithm": copy.deepcopy(DEFAULT), "checkpoint_every_steps": 22}
    for key, text in lines:
        *path, last = key.split(".")
        section = content["train_policy"]["algorithm"]
        for part in path:
            section = section[part]
        assert last in section
        section[last] = yaml.safe_load(text)
    algorithm = parse_params(content, source="the page").train_policy.algorithm
    if method_of(name) in CREDITS:
        assert algorithm.credit == credit_of(method_of(name))


def test_the_page_has_each_method_that_is_named():
    ours = {"batch_baseline", "task_baseline"}  # of nobody's paper
    assert set(CREDITS) - ours <= {method_of(name) for name, _ in ROWS}
    assert {"DAPO", "GiGPO", "MT-GRPO", "LUFFY", "PPO"} <= {name for name, _ in ROWS}
