import math

import pytest
import torch
from tiny import copy_rows, spoilt, tiny_model, tiny_tokenizer
from tiny_runs import digest_of, run_dpo

from posttrain.algorithms.dpo import train_dpo
from posttrain.algorithms.resumable import open_run
from posttrain.algorithms.token_logprobs import agent_logprobs, labels_of
from posttrain.models.codec import TokenRow
from posttrain.params import DpoParams
from posttrain.tracking.metrics_log import read_metrics


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def logprob(model, row):
    with torch.no_grad():
        return float(
            agent_logprobs(
                model, torch.tensor([row.input_ids]), torch.tensor([labels_of(row.input_ids, row.mask)])
            ).sum()
        )


def test_the_loss_begins_at_the_logarithm_of_two_where_policy_and_reference_are_one(tmp_path):
    with open_run(tmp_path) as run:
        run_dpo(run, tiny_model())

    assert read_metrics(tmp_path / "metrics.jsonl")[0]["loss"] == pytest.approx(math.log(2), abs=1e-6)


def test_the_chosen_episode_gains_on_the_rejected_one(tmp_path):
    before, after = tiny_model(), tiny_model()
    with open_run(tmp_path) as run:
        run_dpo(run, after, max_steps=40)

    held_out = [(row, spoilt(row)) for row in copy_rows(40, seed=9)[0]]
    gains = [
        logprob(after, good) - logprob(before, good) - logprob(after, bad) + logprob(before, bad)
        for good, bad in held_out
    ]
    assert sum(gain > 0 for gain in gains) > 0.9 * len(gains)
    assert read_metrics(tmp_path / "metrics.jsonl")[-1]["pair_accuracy"] > 0.9


def test_a_tool_result_is_not_made_likelier(tmp_path):
    # The two tails stand behind the agent's last token, so only a gradient of their own could tell
    # them apart.
    def weights(tail):
        pair = [TokenRow([2, 5, 2, word, 1, tail, tail], [0, 0, 0, 1, 1, 0, 0], [0] * 7) for word in (6, 7)]
        model = tiny_model()
        with open_run(tmp_path / str(tail)) as run:
            params = DpoParams(type="dpo", max_steps=3, batch_size=4, beta=0.5)
            train_dpo(
                model,
                tiny_tokenizer(),
                pairs=[tuple(pair)] * 4,
                params=params,
                lr=1e-2,
                optimizer="adamw",
                checkpoint_every_steps=3,
                seed=1,
                run=run,
            )
        return digest_of(model)

    assert weights(8) == weights(9)
