"""Tests of the report: self-contained, the same bytes, the right figures, strict about its files,
and no markup from transcripts."""

import re

import pytest

from posttrain.report.page import read_reports, render_page
from posttrain.runtime.control_chars import escape_control_chars
from posttrain.runtime.exits import DataError
from tests.report.example import arm_record, evaluation, good_reports, grpo_line, success, task_record
from tests.report.outline import Outline

KNOBS = {"seed": 1, "world.seed": 2001}


def page_of(folder, count=24):
    return render_page(read_reports(folder, KNOBS), num_failures_shown=count)


def scripts(page):
    return [attributes for tag, attributes in Outline(page).tags if tag == "script"]


def test_the_page_needs_no_network_and_no_other_file_to_be_seen(make_reports):
    outline = Outline(page_of(make_reports()))
    assert not {tag for tag, _ in outline.tags} & {"link", "img", "iframe", "object", "embed", "base", "form"}
    [policy] = [attributes["content"] for tag, attributes in outline.tags if "http-equiv" in attributes]
    assert policy.startswith("default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-")
    addresses = [
        value or ""
        for _, attributes in outline.tags
        for name, value in attributes.items()
        if name in ("src", "href", "action")
    ]
    assert all(
        value.startswith("#") or value in ("validate_data/index.html", "../.posttrain/run.html") for value in addresses
    )
    assert not [name for _, attributes in outline.tags for name in attributes if name.startswith("on")]
    assert "url(" not in page_of(make_reports())


def test_the_same_figures_give_the_same_bytes_and_no_date(make_reports):
    page = page_of(make_reports())
    assert page == page_of(make_reports())
    assert not re.search(r"\b20\d\d-\d\d|\d\d:\d\d", page)


def test_every_link_within_the_page_leads_somewhere(make_reports):
    tags = Outline(page_of(make_reports())).tags
    ids = {attributes["id"] for _, attributes in tags if "id" in attributes}
    assert {
        attributes["href"][1:] for tag, attributes in tags if tag == "a" and attributes["href"].startswith("#")
    } <= ids


def test_the_first_sentence_says_how_much_better_and_whether_it_may_be_chance(make_reports):
    def said(reports):
        return " ".join(Outline(page_of(make_reports(reports))).text.split())

    def won(num):
        return [task_record(f"t{index}", failure=None if index < num else "wrong_value") for index in range(40)]

    # 12 of 40 tasks differ: 30 points, with a standard error of sqrt(.3 * .7 / 39) = 7.3 points
    better = said({"evaluate/sft.tasks.jsonl": won(24), "evaluate/policy.tasks.jsonl": won(36)})
    assert (
        "After learning online the agent succeeds strictly on 80.0 % of 40 held-out tasks; "
        "after fine-tuning alone it was 50.0 %. "
        "+30.0 (+15.2 … +44.8) points: more than the choice of tasks explains. "
        "How far other seeds lie from this one is not known." in better
    )
    worse = said({"evaluate/sft.tasks.jsonl": won(36), "evaluate/policy.tasks.jsonl": won(24)})
    assert "-30.0 (-44.8 … -15.2) points: worse, by more than the choice of tasks explains." in worse
    close = said({"evaluate/sft.tasks.jsonl": won(34), "evaluate/policy.tasks.jsonl": won(36)})
    assert "points: the choice of tasks may explain that." in close
    assert "points" not in said({"evaluate/sft.tasks.jsonl": [task_record("other")]}).partition("Policies")[0]


def test_the_spread_over_seeds_counts_where_they_ran_with_the_same_knobs(make_reports):
    def arm(seed, rate, **knobs):
        policies = {"policy": {**success(rate), "pass_hat_4": 0.5}}
        return arm_record(policies, {**KNOBS, "seed": seed, **knobs}, seed=seed)

    def chance(reports):
        return Outline(page_of(make_reports({"experiments/seeds.json": {"arms": reports}}))).text

    same = {"seed_2": arm(2, 0.8), "seed_3": arm(3, 0.9)}
    assert "the choice of tasks and seeds may explain that" in chance(same)
    assert "the choice of tasks may explain that" in chance(
        {"a": same["seed_2"], "b": arm(3, 0.9, **{"world.seed": 9})}
    )


def test_a_transcript_cannot_become_markup(make_reports):
    attack = (
        "</div></details><script>alert(1)</script><img src=x onerror=alert(1)> {{ 7*7 }} \u202e\x1b[2J\x9b\u2066\u200d"
    )
    hostile = task_record(
        attack,
        failure="wrong_value",
        cell=attack,
        stop_reason=attack,
        transcript=[
            {"role": "user", "content": attack},
            {"role": "assistant", "reasoning": attack, "calls": [[attack, attack]]},
            {"role": attack, "content": attack},
        ],
    )
    page = page_of(make_reports({"evaluate/policy.tasks.jsonl": [hostile]}))
    assert scripts(page) == scripts(page_of(make_reports()))
    assert "img" not in {tag for tag, _ in Outline(page).tags}
    assert escape_control_chars(page) == page
    [shown] = Outline(page).data["failures"]
    assert shown["messages"][0]["text"] == escape_control_chars(attack)


def test_names_that_come_from_data_cannot_become_markup(make_reports):
    attack = '"><script>alert(1)</script>\u202e\x1b[2J'
    reports = good_reports()
    reports["validate_data/summary.json"]["quarantined_by_rule"] = {attack: 3}
    reports["resample_data/summary.json"]["cells"] = {attack: {"validated": 1, "after": 2}}
    reports["evaluate/policy.json"]["by"]["kind"] = {attack: success(0.5)}
    record = arm_record({"sft": {**success(0.5), "pass_hat_4": 0.1}}, KNOBS, **{attack: attack})
    reports["experiments/seeds.json"] = {"arms": {attack: record}}
    page = page_of(make_reports(reports))
    assert scripts(page) == scripts(page_of(make_reports()))
    assert escape_control_chars(page) == page


def test_strict_success_stands_before_success_in_the_table_of_policies_and_in_the_chart(make_reports):
    outline = Outline(page_of(make_reports()))
    titles = "policystrict successstrict pass^4successpass^4other phrasing turnsreward"
    assert titles in " ".join(outline.text.split())
    [chart] = [one for one in outline.data["charts"]["learning"] if one["title"] == "Success of the sampled episodes"]
    assert [curve["name"] for curve in chart["curves"]] == ["strict success", "success"]


def test_the_abilities_are_the_scores_that_the_world_gave_with_the_number_of_their_tasks(make_reports):
    own = evaluation(0.9) | {"scores": {"puzzle_solved": {"mean": 0.123, "num_tasks": 17}}}
    text = Outline(page_of(make_reports({"evaluate/policy.json": own}))).text
    rows = [" ".join(row.split()) for row in text.partition("Abilities")[2].partition("By kind")[0].splitlines()]
    # of teacher, base and sft the means 1, 0 and 0.6, of 40 tasks; none has the policy's own
    assert "completion1.000400.000400.60040–" in rows
    assert "plan success––––" in rows
    assert "puzzle solved–––0.12317" in rows


def test_lost_episodes_are_told_where_there_are_some(make_reports):
    assert "lost episodes" not in Outline(page_of(make_reports())).text
    lost = {"evaluate/sft.json": evaluation(0.6) | {"num_lost": 3}, "evaluate/base.json": evaluation(0.0)}
    assert "lost episodes3 of sft: they ended" in Outline(page_of(make_reports(lost))).text


def test_labels_stand_in_the_order_that_the_knob_has(make_reports):
    def order(knobs):
        text = Outline(render_page(read_reports(make_reports(), knobs), num_failures_shown=0)).text
        cells = text.rpartition("By kind of task")[2].partition("Drag to look")[0]
        return sorted(("kind", "market", "language", "difficulty"), key=lambda label: cells.index(f"{label}tasks"))

    assert order(KNOBS) == ["kind", "market", "language", "difficulty"]  # of the file
    assert order(KNOBS | {"evaluate.by": ["language", "difficulty"]}) == ["language", "difficulty", "kind", "market"]


def test_a_value_that_one_policy_never_met_is_a_dash_and_no_error(make_reports):
    alone = evaluation(0.9)
    alone["by"]["kind"] = {"tool_retrieval": success(0.9)}
    assert "tool retrieval" in page_of(make_reports({"evaluate/policy.json": alone}))


def test_direct_preference_optimisation_has_no_groups_and_the_page_no_spread(make_reports):
    lines = [
        {"step": step, "loss": 0.69 - 0.01 * step, "pair_accuracy": 0.7, "margin": 0.1 * step} for step in range(1, 5)
    ]
    page = page_of(make_reports({"train_policy/metrics.jsonl": lines}))
    assert "After DPO" in page
    assert "Reward spread" not in page


def test_an_alarm_stands_first_with_its_advice(make_reports):
    lines = [grpo_line(step) for step in range(1, 5)]
    assert "alarm" not in Outline(page_of(make_reports({"train_policy/metrics.jsonl": lines}))).text
    lines[2]["alarms"] = "zero_std kl"
    text = Outline(page_of(make_reports({"train_policy/metrics.jsonl": lines}))).text
    assert text.count("alarm at step 3") == 2
    assert "zero std: where all failed take easier tasks" in text


def test_other_seeds_are_shown_where_they_were_run(make_reports):
    assert "Other seeds" not in page_of(make_reports())
    arm = arm_record({"policy": {**success(0.875), "pass_hat_4": 0.5}}, {}, **{"world.seed": 1001})
    text = Outline(page_of(make_reports({"experiments/seeds.json": {"arms": {"world-1001": arm}}}))).text
    assert "world.seed: 1001" in text
    assert "77.5 %" in text  # strict


@pytest.mark.parametrize(
    ("records", "count", "shown", "title"),
    [
        ([task_record("t0")], 24, [], None),
        (
            [task_record("own", failure="x"), task_record("other", failure="x", split="test_paraphrase")],
            24,
            ["own"],
            "The policy's 1 failed episodes",
        ),
        ([task_record("a", failure="x"), task_record("b", failure="x")], 1, ["a"], "1 of the policy's 2 failed"),
    ],
)
def test_failed_episodes_of_the_held_out_tasks_are_shown_up_to_the_knob(make_reports, records, count, shown, title):
    outline = Outline(page := page_of(make_reports({"evaluate/policy.tasks.jsonl": records}), count))
    assert [one["task_id"] for one in outline.data["failures"]] == shown
    assert ('id="episodes"' in page) == bool(shown)
    assert title is None or title in outline.text


@pytest.mark.parametrize("name", sorted(good_reports()))
def test_a_missing_file_is_named_with_the_command_that_writes_it(make_reports, name):
    stage, _, file = name.partition("/")
    expected = (
        "python -m flows.experiments experiments/seeds.yaml"
        if name == "experiments/seeds.json"
        else f"dvc repro {stage}" + (f"@{file.split('.')[0]}" if stage == "evaluate" else "")
    )
    with pytest.raises(DataError, match=rf"{re.escape(name)} is missing.*`{expected}`$"):
        page_of(make_reports({name: None}))


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("evaluate/base.json", {"success_rate": 0.5}, r"base\.json is not what the report reads \(ci_low: Field req"),
        ("evaluate/sft.tasks.jsonl", [task_record("a"), task_record("b", turns="many")], r"jsonl, line 2 .*turns"),
        ("evaluate/teacher.json", '{"success_rate": 1', r"teacher\.json is not whole JSON"),
        ("train_sft/metrics.jsonl", '{"step": 1}\n{"st', "line 2 of 2, is not whole JSON"),
        ("train_policy/metrics.jsonl", "", "is empty"),
    ],
)
def test_a_file_of_another_form_is_named_with_what_is_wrong(make_reports, name, content, reason):
    folder = make_reports({} if isinstance(content, str) else {name: content})
    if isinstance(content, str):
        (folder / name).write_text(content)
    with pytest.raises(DataError, match=reason):
        page_of(folder)


def test_losses_that_are_no_number_leave_a_gap_and_no_error(make_reports):
    lines = [{"step": 1, "loss": None, "loss_call": None}, {"step": 2, "loss": 1.0}]
    assert "Fine-tuning: loss" in page_of(make_reports({"train_sft/metrics.jsonl": lines}))
