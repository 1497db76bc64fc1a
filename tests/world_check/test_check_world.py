"""Each rule of the contract finds its planted defects, and no world that keeps the contract is
refused."""

import json
import re
import shutil
from pathlib import Path

import pytest
import yaml

from posttrain.config.named_world import DEFAULT_REWARD
from posttrain.rewards.params import RewardParams
from posttrain.rewards.total import load_reward
from posttrain.types import SPLITS
from posttrain.world_check import isolation
from posttrain.world_check.check import check_world
from posttrain.world_check.tasks import counts_of
from posttrain.worlds.catalog import example_params, score_names
from tests.console import posttrain
from tests.world_check import planted
from tests.world_check.planted import Boxes, domain_with, end_what_was_left
from tests.worlds.loopback import serving
from tests.worlds.test_http_env import Guessing, params_of

NUM_TASKS = 3
TOOLS = "tools: all that are offered exist, with an OpenAI schema"
RAISES = "episodes: a user's message comes first, and nothing but ToolError is raised"
EXPERT = "expert: a strict success on every task, with reward 1"
# Every rule, with the planted defects that it finds.
DEFECTS = {
    "tasks: every split is complete, with unique ids, text labels and a goal in a line": (
        *(planted.NoDevTasks, planted.OneTaskTooFew, planted.WrongSplit, planted.IdsWithoutSplit),
        *(planted.NumbersAsLabels, planted.WantsNothing),
    ),
    "tasks: the same in every list, domain and process": (
        *(planted.OrderByCount, planted.DrawnFromTheModule, planted.DrawnByHash),
    ),
    "tasks: held-out splits share no entity with sft": (planted.OneBoxForAll,),
    TOOLS: (planted.OffersAKey, planted.NoObject, planted.NoDescription, planted.OtherName),
    RAISES: (
        *(planted.Mute, planted.CrashingTool, planted.UnreadableResult, planted.DeafToNothing),
        *(planted.CannotBeOpened, planted.GradesByBool, planted.ScoreOfTwo, planted.ClosesAtOnce),
    ),
    EXPERT: (planted.ShoutingGold, planted.ExpertWhoStops, planted.HalfAFormat),
    "rewards: an empty episode fails, and no failure earns as much as a success": (
        *(planted.SilenceIsGolden, planted.PaidForNothing),
    ),
    "rewards: every adversary earns less than the expert": (  # a defect for each adversary
        *(planted.AnyToolDoes, planted.WordsDo, planted.LastWordsDo, planted.LooksTwice, planted.TryingDoes),
    ),
    "grade: the named scores, a class for each failure, a score for each turn or none": (
        *(planted.JustFails, planted.ForgetsItsScore, planted.MoreScores, planted.OneTurnTooMany),
        planted.CostsOfNoScore,
    ),
    "episodes: the same when replayed, interleaved and eight at once": (
        *(planted.Counts, planted.SeesOthers, planted.HasSevenPlaces),
    ),
    "regenerate: the same question about other entities": (
        *(planted.AnotherLabel, planted.TheSameAnew, planted.AnewByChance, planted.AnewUnsolvable),
    ),
    "close: nothing is raised, and nothing stays open": (
        *(planted.ClosesWhatItNeverOpened, planted.LeavesSockets, planted.LeavesFiles),
        *(planted.LeavesThreads, planted.LeavesProcesses),
    ),
}
ALSO_BREAKS = {planted.OffersAKey: {RAISES}}  # no episode begins without a tool that is offered


def checked(domain, *, in_child=False):
    section = example_params(f"tests.world_check.planted:{domain.__name__}")
    rule = load_reward(RewardParams.model_validate(DEFAULT_REWARD), score_names(domain(section)))
    counts = counts_of(section, NUM_TASKS)
    return check_world(lambda: domain(section), counts, rule, section=section if in_child else None)


@pytest.fixture(autouse=True, scope="module")
def nothing_left():
    """Whatever these worlds leave open stays open: half a second of waiting tells."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(isolation, "WAIT_S", 0.5)
        yield
    end_what_was_left()


def test_a_world_that_keeps_the_contract_and_has_every_part_is_tried_by_every_rule():
    kept = checked(Boxes, in_child=True)
    assert {finding.rule: (finding.state, finding.why) for finding in kept.findings} == dict.fromkeys(
        DEFECTS, ("ok", "")
    )
    assert all(kept.has.values())
    assert kept.num_tasks == dict.fromkeys(SPLITS, NUM_TASKS)
    assert kept.facts["max_gold_messages"] == 4  # a question, two calls, an answer
    assert kept.facts["num_episodes"] == 5 * NUM_TASKS * (1 + 1 + 1 + 5)  # gold, empty, flawed, five adversaries


def test_every_planted_defect_is_in_the_table():
    own = {name for name, one in vars(planted).items() if isinstance(one, type) and one.__module__ == planted.__name__}
    bases = {"Box", "Boxes", "OddSchema", "Lenient", "Crowded"}
    assert {defect.__name__ for defects in DEFECTS.values() for defect in defects} == own - bases


@pytest.mark.parametrize(
    ("rule", "defect"), [(rule, defect) for rule, defects in DEFECTS.items() for defect in defects]
)
def test_the_rule_finds_its_planted_defect_and_no_other_rule_does(rule, defect):
    found = checked(domain_with(defect), in_child=defect is planted.DrawnByHash)
    failed = {finding.rule: finding.why for finding in found.findings if finding.state == "FAILED"}
    assert set(failed) == {rule} | ALSO_BREAKS.get(defect, set()), failed
    assert all(len(why) > 40 for why in failed.values()), failed  # a sentence, not a word


# The command


@pytest.mark.parametrize("name", ["toy", "stocks"])
def test_the_librarys_own_worlds_keep_it_by_the_reward_of_params_yaml(repository, monkeypatch, name):
    monkeypatch.chdir(repository)
    ended = posttrain("check-world", name, "--num-tasks", 8)
    assert ended.exit_code == 0, ended.stdout + ended.stderr
    assert "; the reward of params.yaml" in ended.stdout
    assert "12 rules hold, 0 broken, 0 not tried" in ended.stdout
    assert (
        "ok         close: nothing is raised, and nothing stays open (not tried: the world has no close)"
        in ended.stdout
    )


@pytest.fixture
def ours(repository, tmp_path, monkeypatch):
    """A folder without params.yaml, with the recipe's world of dice."""
    text = (repository / "docs/your-world-and-agent.md").read_text(encoding="utf-8")
    source = re.search(r"```python\n# ours/dice.py\n(.*?)```", text, flags=re.DOTALL)
    assert source
    (tmp_path / "recipe_of_dice.py").write_text(source[1], encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_the_recipes_world_keeps_it_without_a_params_yaml(ours):
    ended = posttrain("check-world", "recipe_of_dice:Dice", "--num-tasks", 12)
    assert ended.exit_code == 0, ended.stdout + ended.stderr
    assert ended.stdout.startswith("dice: 12 sft, 12 rl, 12 dev, 12 test, 12 test_paraphrase; the default reward\n")
    assert "has expert, regenerate; without describe_goal, scores, opening, is_over, close" in ended.stdout
    assert re.search(r"\d+ episodes, \d+ a second; the expert writes up to 2 messages in one", ended.stdout)


def test_a_server_of_environments_keeps_it(repository, ours):
    content = yaml.safe_load((repository / "params.yaml").read_text(encoding="utf-8"))
    content["sample_preferences"]["num_tasks"] = content["train_policy"]["algorithm"]["tasks_per_step"] = 3
    with serving(Guessing().application) as url:
        content["world"] = params_of(url).model_dump(mode="json")
        Path("params.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
        ended = posttrain("check-world", "http_env")
    assert ended.exit_code == 0, ended.stdout + ended.stderr
    assert "has scores, opening, is_over, close; without expert, regenerate, describe_goal" in ended.stdout
    assert "8 rules hold, 0 broken, 4 not tried" in ended.stdout


def test_a_broken_rule_is_told_with_task_and_remedy_and_ends_with_65(ours):
    ended = posttrain("check-world", "tests.world_check.planted:IdsWithoutSplit", "--num-tasks", 2)
    assert ended.exit_code == 65
    assert re.search(
        r"FAILED     tasks: .*\n {11}'box-0' is the id of 5 tasks, .*put the split into the id", ended.stdout
    )
    assert "breaks 1 rules" in ended.stderr


def test_as_json_it_is_one_object(ours):
    ended = posttrain("check-world", "tests.world_check.planted:WantsNothing", "--num-tasks", 2, "--json")
    record = json.loads(ended.stdout)
    assert (ended.exit_code, record["is_kept"], record["reward"]) == (65, False, "the default reward")
    assert [one["rule"] for one in record["findings"] if one["state"] == "FAILED"] == [next(iter(DEFECTS))]


def test_the_section_and_the_count_of_params_yaml_are_those_of_the_world_that_it_names(repository, ours):
    text = (repository / "params.yaml").read_text(encoding="utf-8").replace("num_test_tasks: 480", "num_test_tasks: 3")
    shutil.copy(repository / "params.yaml", ours / "params.yaml")
    (ours / "other.yaml").write_text(text, encoding="utf-8")
    ended = posttrain("check-world", "stocks", "--params", "other.yaml", "--num-tasks", 4)
    assert ended.exit_code == 0, ended.stdout + ended.stderr
    counts = "4 sft, 4 rl, 4 dev, 3 test, 3 test_paraphrase, 4 dev_paraphrase, 3 test_noisy"
    assert ended.stdout.startswith(f"stocks: {counts}; the reward of other.yaml")


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("tyo", "there is no world 'tyo'; .* Did you mean 'toy'"),
        ("nowhere.at_all:World", "cannot be imported"),
        ("json:dumps", "json:dumps gives a str without name, tools, tasks, open|cannot be made"),
        ("tests.world_check.planted:call", "cannot be made .TypeError"),
    ],
)
def test_a_world_that_cannot_be_made_ends_with_78(ours, name, why):
    ended = posttrain("check-world", name)
    assert ended.exit_code == 78
    assert re.search(why, ended.stderr), ended.stderr


def test_no_task_at_all_and_a_params_yaml_that_is_not_there_are_refused_with_78(ours):
    assert posttrain("check-world", "toy", "--num-tasks", 0).exit_code == 78
    assert posttrain("check-world", "toy", "--params", "absent.yaml").exit_code == 78
