"""The stock tasks as a whole: who can do them, who cannot, and that nothing leaks from one split
into another."""

import functools
import random
import subprocess
import sys
from collections import Counter
from itertools import combinations
from pathlib import Path

import pytest

from posttrain.config.params import load_params
from posttrain.rollout.episodes import run_episodes
from posttrain.rollout.policy import ScriptedPolicy
from posttrain.types import SPLITS, StopReason, Trajectory
from posttrain.worlds.lookups.demonstrations import occasions
from posttrain.worlds.lookups.gold import gold_of
from posttrain.worlds.lookups.schedule import KINDS
from posttrain.worlds.scripts import ScriptedExpert, say
from posttrain.worlds.stocks.codes import MARKETS_AS_SIDES
from posttrain.worlds.stocks.domain import StocksDomain, StocksHandbook
from posttrain.worlds.stocks.phrasing import BOTH, CUES, FIELD_WORDS, FRAMES, GROUPS, PURPOSE_WORDS, REPLIES, misspelt
from posttrain.worlds.stocks.tasks import POLICY_TEXT
from tests.limits import limits_of
from tests.worlds_of import stocks_params

LIMITS = limits_of(6, 64, 1024)
RATES = load_params(Path(__file__).parents[3] / "params.yaml").world.flaw_rates.model_dump()
NO_FLAWS = dict.fromkeys(RATES, 0.0)
# as the world's knobs call them, and as the plays that lookup worlds share do
FLAW_OF_KNOB = {knob: knob for knob in RATES} | {
    "wrong_market": "wrong_side",
    "indicator_mixup": "look_alike",
    "market_flip": "side_flip",
}
BIG_THREE = ("wrong_market", "give_up", "indicator_mixup")


@functools.cache
def domain_of(max_difficulty, seed=7, **flaws):
    return StocksDomain(stocks_params(max_difficulty=max_difficulty, seed=seed, flaw_rates={**NO_FLAWS, **flaws}))


@pytest.fixture(scope="module")
def hard():
    return domain_of(3)


@pytest.fixture(scope="module")
def usual():
    return domain_of(2)


@functools.cache
def all_tasks(domain, split):
    return domain.tasks(split, 480)


def first(domain, split, count):
    """Tasks of a split, drawn once for all tests: a longer list begins with the shorter."""
    return all_tasks(domain, split)[:count]


def play(domain, tasks, make_expert, max_turns=6):
    limits = LIMITS.model_copy(update={"max_turns": max_turns})
    return run_episodes(ScriptedPolicy(make_expert), tasks, domain=domain, limits=limits, seeds=range(len(tasks)))


def play_expert(domain, tasks, flaws=None, reasoning_frac=0.3, max_turns=6):
    """The flawless expert, or the one of a world that is the same but for its flaws' rates."""
    if flaws is not None:
        knobs = domain._params
        domain = domain_of(knobs.max_difficulty, knobs.seed, **flaws)
    return play(
        domain,
        tasks,
        lambda task, seed: domain.expert(task, seed=seed, is_flawless=flaws is None, reasoning_frac=reasoning_frac),
        max_turns,
    )


def success(trajectories):
    return sum(trajectory.is_success for trajectory in trajectories) / len(trajectories)


def has_occasion(task, knob):
    return FLAW_OF_KNOB[knob] in occasions(task, StocksHandbook())


# Who can do it


@pytest.mark.parametrize("split", [*SPLITS, "dev_paraphrase", "test_noisy"])
def test_the_gold_expert_succeeds_strictly_on_every_task_of_every_difficulty_within_six_turns(hard, split):
    tasks = first(hard, split, 360)
    for trajectory, task in zip(play_expert(hard, tasks), tasks, strict=True):
        assert trajectory.is_strict_success, (task, trajectory.messages[2:])


def test_an_empty_episode_never_succeeds(hard):
    tasks = first(hard, "dev", 120)
    empty = [Trajectory(task.task_id, task.messages, StopReason.TURN_LIMIT) for task in tasks]
    assert not any(hard.open(task).grade(one).success for one, task in zip(empty, tasks, strict=True))
    assert success(play(hard, tasks, lambda task, seed: ScriptedExpert(iter([say("")])))) == 0.0


# The flaws


def test_at_the_usual_difficulty_the_flawed_majority_has_headroom_that_is_worth_repairing(usual):
    tasks = first(usual, "rl", 480)
    share = sum(any(has_occasion(task, flaw) for flaw in BIG_THREE) for task in tasks) / len(tasks)
    assert 0.36 < share < 0.46
    assert 0.62 < success(play_expert(usual, tasks, RATES)) < 0.80
    majority = play_expert(
        usual, tasks, dict.fromkeys(BIG_THREE, 1.0)
    )  # what a model that always does as most demonstrations do reaches
    assert 0.55 < success(majority) < 0.70


@pytest.fixture(scope="module")
def gold(hard):
    return play_expert(hard, first(hard, "rl", 240), reasoning_frac=0.0)


@pytest.mark.parametrize("flaw", sorted(RATES))
def test_a_flaw_shows_where_there_is_the_occasion_and_nowhere_else(hard, gold, flaw):
    tasks = first(hard, "rl", 240)
    flawed = play_expert(hard, tasks, {flaw: 1.0}, reasoning_frac=0.0, max_turns=14)
    for task, right, wrong in zip(tasks, gold, flawed, strict=True):
        assert (right.messages != wrong.messages) == has_occasion(task, flaw), task
    lost = 1 - success(flawed)
    assert (lost > 0.02) == (flaw in ("wrong_market", "give_up", "indicator_mixup", "market_flip"))
    assert lost == 0 or lost > 0.02


def test_a_flipped_market_is_named_right_and_called_wrong(hard):
    tasks = [task for task in first(hard, "rl", 240) if has_occasion(task, "market_flip")]
    for trajectory in play_expert(hard, tasks, {"market_flip": 1.0}):
        calling = next(message for message in trajectory.messages if message.tool_calls)
        assert MARKETS_AS_SIDES.stated_in(calling.reasoning_content or "") == "hk"
        assert "_hk_" not in calling.tool_calls[0].name


# The splits


def test_splits_share_no_company_no_text_and_no_id(hard):
    lists = {split: first(hard, split, 480) for split in SPLITS}
    for one, other in combinations(("sft", "rl", "dev", "test"), 2):
        assert not {c for task in lists[one] for c in task.entities} & {
            c for task in lists[other] for c in task.entities
        }
    texts = Counter(task.messages[1].content for tasks in lists.values() for task in tasks)
    assert max(texts.values()) == 1
    assert len({task.task_id for tasks in lists.values() for task in tasks}) == 5 * 480


def test_the_paraphrases_share_no_sentence_with_the_other_splits(hard):
    assert {task.labels["kind"] for task in first(hard, "test_paraphrase", 40)} == set(KINDS)
    assert all("/paraphrase" in task.template for task in first(hard, "test_paraphrase", 100))
    assert all("/plain" in task.template for split in ("sft", "rl", "dev", "test") for task in first(hard, split, 100))


def test_no_wording_is_used_both_in_training_and_in_a_paraphrased_split():
    tables = (FIELD_WORDS, PURPOSE_WORDS, FRAMES, BOTH, REPLIES, CUES)
    by_key = [(key, one) for table in tables for key, one in table.items() if key[0] != "ending"]
    for key, one in by_key:
        groups = [one.of("plain", 6), one.dev, one.test]
        assert not any(set(a) & set(b) for a, b in combinations(groups, 2)), key
        assert len(set(groups[0])) == len(one.usual) + len(one.more) >= 4, key
    assert min(len(one.more) for table in (FIELD_WORDS, PURPOSE_WORDS) for one in table.values()) == 5


def test_more_wordings_are_more_texts_and_the_paraphrased_splits_stay():
    few, many = (StocksDomain(stocks_params(num_wordings=number)) for number in (1, 6))
    for split, is_same in (("sft", False), ("test", False), ("test_paraphrase", True), ("dev_paraphrase", True)):
        one, other = ({task.messages[1].content for task in domain.tasks(split, 200)} for domain in (few, many))
        assert (one == other) is is_same, split
    frames = [{task.template.rpartition("/")[2] for task in domain.tasks("sft", 400)} for domain in (few, many)]
    assert "plain8" in frames[1]
    assert "plain8" not in frames[0]  # no family has so many usual ones


def test_noise_changes_words_and_never_the_name_the_code_or_the_number(usual):
    tasks = usual.tasks("test_noisy", 300)
    assert {task.template.rpartition("/")[2].rstrip("0123456789") for task in tasks} == set(GROUPS["test_noisy"])
    for task in tasks:
        text, gold = task.messages[1].content, gold_of(task)
        named = [value for call in gold.calls if not call.holds_answer for value in call.arguments["name"]]
        codes = [value for call in gold.calls for value in call.arguments.get("code", ())]
        assert not gold.calls or any(str(value) in text for value in (*named, *codes)), text
    assert misspelt("current price", "en", random.Random(1)) == "curernt price"
    assert misspelt("市盈率", "zh", random.Random(1)) in ("市赢率", "市盈律")
    assert misspelt("PE", "en", random.Random(1)) == "PE"


def test_a_longer_list_begins_with_the_shorter_and_another_process_makes_the_same(usual):
    tasks = usual.tasks("test", 200)
    assert usual.tasks("test", 60) == tasks[:60]
    assert domain_of.__wrapped__(2).tasks("test", 60) == tasks[:60]
    program = (
        "from tests.worlds_of import stocks_params; from posttrain.worlds.catalog import make_domain; "
        "world = stocks_params(max_difficulty=2, seed=7); "
        "print(*[task.task_id for task in make_domain(world).tasks('test', 60)])"
    )
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert printed.split() == [task.task_id for task in tasks[:60]]


def test_rl_dev_and_test_are_balanced_exactly_and_demonstrations_are_not(usual):
    tasks = first(usual, "rl", 480)
    about = [task.labels for task in tasks]
    assert Counter(labels["kind"] for labels in about) == dict.fromkeys(KINDS, 120)
    assert Counter(labels["language"] for labels in about) == {"zh": 240, "en": 240}
    assert Counter(labels["difficulty"] for labels in about) == {"1": 240, "2": 240}
    markets = {kind: Counter(labels["market"] for labels in about if labels["kind"] == kind) for kind in KINDS}
    assert markets["tool_selection"] == {"a": 60, "hk": 60}
    assert markets["multi_step_planning"] == {"a": 40, "hk": 40, "both": 40}
    assert markets["timing_decision"] == {"a": 40, "hk": 40, "none": 40}
    sft = usual.tasks("sft", 1200)
    by_market, by_kind = Counter(task.labels["market"] for task in sft), Counter(task.labels["kind"] for task in sft)
    assert by_market["a"] > 1.8 * by_market["hk"]
    assert by_kind["tool_selection"] > 1.7 * by_kind["tool_retrieval"]


def test_more_tasks_than_the_companies_give_is_said_so(usual, monkeypatch):
    monkeypatch.setattr(
        "posttrain.worlds.lookups.domain.NUM_DRAWS", 1
    )  # the first text that comes again ends it, not the hundredth in a row
    with pytest.raises(ValueError, match=r"are wanted; lower world\.num_dev_tasks"):
        usual.tasks("dev", 20_000)


# One task


def test_a_task_offers_what_it_needs_the_other_markets_and_little_more(hard):
    sizes = Counter()
    for task in first(hard, "dev", 480):
        assert {gold.name for gold in gold_of(task).calls} <= set(task.tools)
        assert any("_hk_" in tool for tool in task.tools)
        assert list(task.tools) == [tool for tool in hard.tools if tool in task.tools]
        assert list(hard.open(task).tools()) == list(task.tools)
        sizes[len(task.tools)] += 1
    assert set(sizes) == set(range(4, 11))


def test_the_user_tells_the_market_as_often_as_asked_and_only_where_it_was_open(hard):
    for task in first(hard, "dev", 200):
        world = hard.open(task)
        replies = [world.user_reply(say("ASK: market")) for _ in range(2)]
        assert replies[0] == replies[1]
        assert (replies[0] is not None) == (gold_of(task).asks == "market")
        assert world.user_reply(say("ASK: currency")) is None
        assert world.user_reply(say("ANSWER: done")) is None
    hk = next(
        task
        for task in first(hard, "dev", 200)
        if gold_of(task).asks and task.labels["market"] == "hk" and task.labels["language"] == "zh"
    )
    assert hard.open(hk).user_reply(say("ASK: market")) == "港股"


@pytest.mark.parametrize("split", ["sft", "test_paraphrase"])
def test_a_task_realised_anew_asks_the_same_question_about_other_companies_of_its_split(hard, split):
    tasks = first(hard, split, 120)
    anew = [hard.regenerate(task, seed=3) for task in tasks]
    own = {company.company_id for company in hard._market.companies_of(split)}
    for old, new in zip(tasks, anew, strict=True):
        assert (old.labels, old.split, old.template) == (new.labels, new.split, new.template)
        assert set(new.entities) <= own
    named = [(old, new) for old, new in zip(tasks, anew, strict=True) if old.entities]
    assert sum(old.entities != new.entities for old, new in named) / len(named) > 0.9
    assert success(play_expert(hard, anew)) == 1.0
    assert [hard.regenerate(task, seed=3) for task in tasks[:20]] == anew[:20]
    assert hard.regenerate(tasks[0], seed=4) != anew[0]


def test_the_policy_text_is_the_golden_one(repository):
    assert (repository / "tests/golden/stocks_policy_text.txt").read_text() == POLICY_TEXT + "\n"


@pytest.mark.parametrize("languages", [["en"], ["zh"]])
def test_questions_are_in_the_languages_that_are_asked_for(languages):
    domain = StocksDomain(stocks_params(languages=languages))
    for split in SPLITS:
        tasks = first(domain, split, 60)
        assert {task.labels["language"] for task in tasks} == set(languages)
        assert {task.labels["kind"] for task in tasks} == set(KINDS)
