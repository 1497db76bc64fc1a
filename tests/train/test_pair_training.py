"""DPO with each of its losses, KTO and ORPO: the loss by hand, what is learnt and what is not."""

import copy
import math

import numpy as np
import pytest
import torch
from tiny import copy_rows, spoilt, tiny_model
from tiny_runs import digest_of, pairs_of_copies, run_here

from posttrain.models.codec import TokenRow
from posttrain.train.kto import mismatched
from posttrain.train.sample_order import passes_by_length

BETA = 0.5
BATCH_SIZE, NUM_PARTS = 8, 4
WEIGHTS = {"desirable_weight": 1.5, "undesirable_weight": 0.75}

RUNS_ON_PAIRS = [
    pytest.param("dpo", {"loss": "sigmoid"}, id="sigmoid"),
    pytest.param("dpo", {"loss": "hinge"}, id="hinge"),
    pytest.param("dpo", {"loss": "ipo"}, id="ipo"),
    pytest.param("dpo", {"loss": "robust", "label_smoothing": 0.1}, id="robust"),
    pytest.param("dpo", {"loss": "sigmoid", "reference_free": True}, id="reference_free"),
    pytest.param("kto", WEIGHTS, id="kto"),
    pytest.param("orpo", {}, id="orpo"),
]


def in_double(model):
    """A copy of it as it is now, in float64."""
    return copy.deepcopy(model).eval().double()


def logprob(model, row):
    """Log-probability of the agent's tokens, summed in float64. `model` is `in_double`."""
    with torch.no_grad():
        logprobs = model(torch.tensor([row.input_ids])).logits[0].log_softmax(-1)
    return sum(float(logprobs[place - 1, token]) for place, token in enumerate(row.input_ids) if row.mask[place])


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def steps_of(name, folder, **changes):
    """The metrics of each step, and the models as they were before it."""
    model = tiny_model()
    before = [in_double(tiny_model())]
    changes |= {"max_steps": 3, "beta": BETA}
    _, lines = run_here(name, folder, model, progress=lambda *_: before.append(copied(model)), **changes)
    return lines, before


def copied(model):
    """A trainer patches `forward`: its weights in a model that none has had."""
    other = tiny_model()
    other.load_state_dict(model.state_dict())
    return in_double(other)


def pairs_of_step(step):
    """In the order of the step, whose parts are two pairs each."""
    pairs = pairs_of_copies()
    order = passes_by_length([max(len(row.input_ids) for row in pair) for pair in pairs], 3, BATCH_SIZE, seed=1)
    return [pairs[place] for place in order[step * BATCH_SIZE :][:BATCH_SIZE]]


def episodes_of_step(step):
    """Both sides of all pairs, one by one, in the order of KTO's step."""
    episodes = [(pair[side], side == 0) for pair in pairs_of_copies() for side in (0, 1)]
    order = passes_by_length([len(row.input_ids) for row, _ in episodes], 3, 2 * BATCH_SIZE, seed=1)
    return [episodes[place] for place in order[step * 2 * BATCH_SIZE :][: 2 * BATCH_SIZE]]


def expected_loss(name, changes, start, now, step):
    pairs = pairs_of_step(step)

    def gain(row):
        return logprob(now, row) - (0 if changes.get("reference_free") else logprob(start, row))

    match name, changes.get("loss"):
        case "dpo", "sigmoid" | "robust":
            wrong = changes.get("label_smoothing", 0)
            apart = [BETA * (gain(good) - gain(bad)) for good, bad in pairs]
            losses = [-(1 - wrong) * math.log(sigmoid(one)) + wrong * math.log(sigmoid(-one)) for one in apart]
            losses = [loss / (1 - 2 * wrong) for loss in losses]
        case "dpo", "hinge":
            losses = [max(0.0, 1 - BETA * (gain(good) - gain(bad))) for good, bad in pairs]
        case "dpo", "ipo":
            losses = [
                (gain(good) / sum(good.mask) - gain(bad) / sum(bad.mask) - 1 / (2 * BETA)) ** 2 for good, bad in pairs
            ]
        case "kto", _:
            episodes = episodes_of_step(step)
            # with what follows the prompt of the episode before, the first one's being the last
            strange = [mismatched(row, episodes[place - 1][0]) for place, (row, _) in enumerate(episodes)]
            losses = []
            for first in range(0, 2 * BATCH_SIZE, 2 * BATCH_SIZE // NUM_PARTS):
                part = slice(first, first + 2 * BATCH_SIZE // NUM_PARTS)
                z = max(0.0, np.mean([gain(row) for row in strange[part]]))
                for row, is_good in episodes[part]:
                    distance = gain(row) - z if is_good else z - gain(row)
                    losses.append((1.5 if is_good else 0.75) * (1 - sigmoid(BETA * distance)))
        case "orpo", _:
            losses = []
            for good, bad in pairs:
                p_good, p_bad = (math.exp(logprob(now, row) / sum(row.mask)) for row in (good, bad))
                odds_ratio = p_good / (1 - p_good) * (1 - p_bad) / p_bad
                losses.append(-math.log(p_good) - BETA * math.log(sigmoid(math.log(odds_ratio))))
    return np.mean(losses)


@pytest.mark.parametrize(("name", "changes"), RUNS_ON_PAIRS)
def test_the_loss_is_the_formula_on_the_log_probabilities_of_the_agents_tokens(name, changes, tmp_path):
    lines, before = steps_of(name, tmp_path, **changes)
    found = [line["loss"] for line in lines]
    expected = [expected_loss(name, changes, before[0], before[step], step) for step in range(3)]

    assert found == pytest.approx(expected, abs=2e-6)
    assert max(expected) - min(expected) > 1e-3  # the later steps are not the first one again


@pytest.mark.parametrize(("name", "changes"), RUNS_ON_PAIRS)
def test_the_chosen_episode_gains_on_the_rejected_one(name, changes, tmp_path):
    before = in_double(tiny_model())
    model, lines = run_here(name, tmp_path, max_steps=15, lr=3e-2, **changes)
    after = copied(model)

    held_out = [(row, spoilt(row)) for row in copy_rows(40, seed=9)[0]]
    gains = [
        logprob(after, good) - logprob(before, good) - logprob(after, bad) + logprob(before, bad)
        for good, bad in held_out
    ]
    assert sum(gain > 0 for gain in gains) > 0.9 * len(gains)
    assert lines[-1]["pair_accuracy"] > 0.9
    assert lines[-1]["margin"] > lines[0]["margin"]


@pytest.mark.parametrize(("name", "changes"), RUNS_ON_PAIRS)
def test_a_tool_result_is_not_made_likelier(name, changes, tmp_path):
    # The two tails stand behind the agent's last token, so only a gradient of their own could tell
    # them apart.
    def weights(tail):
        pair = tuple(TokenRow([2, 5, 2, word, 1, tail, tail], [0, 0, 0, 1, 1, 0, 0], [0] * 7) for word in (6, 7))
        model, _ = run_here(
            name, tmp_path / str(tail), pairs=[pair] * 4, optimizer="adamw", max_steps=2, batch_size=4, **changes
        )
        return digest_of(model)

    assert weights(8) == weights(9)


def test_a_mismatched_episode_is_one_tasks_prompt_with_what_follows_anothers():
    own = TokenRow([2, 5, 2, 6, 1], [0, 0, 0, 1, 1], [0, 0, 0, 3, 3])
    other = TokenRow([2, 7, 7, 2, 8, 2, 9, 1], [0, 0, 0, 0, 1, 0, 1, 1], [0, 0, 0, 0, 2, 0, 3, 3])

    assert mismatched(own, other) == TokenRow([2, 5, 2, 8, 2, 9, 1], [0, 0, 0, 1, 0, 1, 1], [0, 0, 0, 2, 0, 3, 3])


def test_an_episode_that_is_certain_leaves_orpo_its_weights(tmp_path):
    model = tiny_model()
    with torch.no_grad():
        model.model.norm.weight.mul_(1e4)  # logits so far apart that the likeliest token has all of it
        words = [2, 5, 2]
        for _ in range(3):
            words.append(int(model(torch.tensor([words])).logits[0, -1].argmax()))
    certain = TokenRow(words, [0, 0, 0, 1, 1, 1], [0] * 6)
    assert logprob(in_double(model), certain) == 0.0

    trained, lines = run_here(
        "orpo", tmp_path, model, pairs=[(certain, spoilt(certain))] * 2, max_steps=4, batch_size=2
    )

    assert all(math.isfinite(line["loss"]) for line in lines)
    assert all(torch.isfinite(weight).all() for weight in trained.state_dict().values())
