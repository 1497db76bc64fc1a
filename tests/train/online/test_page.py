"""Rows of docs/learning-online.md are accepted in params.yaml, and are what the ablation compares
under their names."""

import copy
import re
from pathlib import Path

import pytest
import yaml

from posttrain.config.params import parse_params
from posttrain.train.online.params import OnlineParams

REPOSITORY = Path(__file__).parents[3]
PAGE = (REPOSITORY / "docs" / "learning-online.md").read_text(encoding="utf-8")
OVERRIDES = yaml.safe_load((REPOSITORY / "experiments" / "methods.yaml").read_text(encoding="utf-8"))["overrides"]
METHODS = {one["name"]: one for one in OVERRIDES}
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


def algorithm_of(lines):
    """The default with these in place of what stands at their keys."""
    algorithm = copy.deepcopy(DEFAULT)
    for key, value in lines.items():
        *path, last = key.split(".")
        section = algorithm
        for part in path:
            section = section[part]
        assert last in section
        section[last] = value
    return algorithm


@pytest.mark.parametrize(("name", "lines"), ROWS, ids=[f"{name} {lines[0][0]}"[:40] for name, lines in ROWS])
def test_each_row_of_the_page_is_accepted(repository, name, lines):
    content = yaml.safe_load((repository / "params.yaml").read_text(encoding="utf-8"))
    algorithm = algorithm_of({key: yaml.safe_load(text) for key, text in lines})
    content["train_policy"] |= {"algorithm": algorithm, "checkpoint_every_steps": 22}
    parse_params(content, source="the page")


@pytest.mark.parametrize("name", [name for name, _ in ROWS if method_of(name) in METHODS])
def test_a_method_is_on_the_page_what_it_is_in_the_experiments(name):
    [lines] = [lines for of_name, lines in ROWS if of_name == name]
    compared = {
        key.removeprefix("train_policy.algorithm."): value for key, value in METHODS[method_of(name)]["set"].items()
    }
    assert algorithm_of({key: yaml.safe_load(text) for key, text in lines}) == algorithm_of(compared)


def test_the_page_has_each_method_that_was_published_by_a_name():
    named = {"dr_grpo", "rloo", "ngrpo", "dapo", "gdpo", "rl_zvp", "gigpo", "mt_grpo", "luffy"}
    assert named | {"ppo"} <= {method_of(name) for name, _ in ROWS} & set(METHODS)
