"""A model of 20,000 parameters over sixteen words, and rows for it, so that a training run takes a
second."""

import dataclasses
import functools
from dataclasses import replace

import numpy as np
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import (
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2ForSequenceClassification,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3ForSequenceClassification,
)

from posttrain.models.codec import CALL, NONE, REASONING, TEXT, TokenRow
from posttrain.models.lora import add_lora
from posttrain.models.params import LoraAdapter
from posttrain.types import Message, Outcome, ScoredEpisode, StopReason, Task, Trajectory, Turn
from posttrain.worlds.lookups.schedule import KINDS
from tests.tiny import CONFIG

WORDS = ["<pad>", "<end>", "<turn>", "<think>", *"abcdefghijkl"]
OF_WORDS = {"vocab_size": len(WORDS), "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": None, "num_labels": 1}


def tiny_tokenizer():
    words = Tokenizer(WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="<pad>"))
    words.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<end>")


def tiny_config(**changes):
    return Qwen3Config(**CONFIG, **(OF_WORDS | changes), head_dim=8, tie_word_embeddings=True)


def tiny_model(seed=0):
    torch.manual_seed(seed)
    return Qwen3ForCausalLM(tiny_config()).eval()


def tiny_adapted_model(task_type="CAUSAL_LM", seed=0, *, has_second=False, **changes):
    """Qwen2's architecture under adapters, as a team would fine-tune a pretrained model."""
    torch.manual_seed(seed)
    model_class = Qwen2ForCausalLM if task_type == "CAUSAL_LM" else Qwen2ForSequenceClassification
    params = LoraAdapter(
        type="lora", r=4, alpha=8, dropout=0.1, target_modules=["q_proj", "v_proj", "up_proj", "down_proj"]
    )
    model = model_class(Qwen2Config(**CONFIG, **(OF_WORDS | changes))).eval()
    return add_lora(model, params, seed=seed, task_type=task_type, has_second=has_second)


def tiny_reward_model(seed=0, **changes):
    torch.manual_seed(seed)
    return Qwen3ForSequenceClassification(tiny_config(**changes)).eval()


def copy_row(rng):
    """`<turn> x y <turn> <think> x x y <end>`: the agent reasons with the first word, then says
    both; sometimes nothing is thought."""
    x, y = rng.integers(4, len(WORDS), size=2).tolist()
    thought = [3, x] if rng.random() < 0.5 else []
    return TokenRow(
        input_ids=[2, x, y, 2, *thought, x, y, 1],
        mask=[0] * 4 + [1] * (len(thought) + 3),
        category=[NONE] * 4 + [REASONING] * len(thought) + [CALL, TEXT, TEXT],
    )


def copy_rows(count, seed=0):
    rng = np.random.default_rng(seed)
    return [copy_row(rng) for _ in range(count)], [KINDS[index % 4] for index in range(count)]


def wrong_copy(row):
    """The same with the last two words the wrong way round."""
    return replace(row, input_ids=[*row.input_ids[:-3], row.input_ids[-2], row.input_ids[-3], row.input_ids[-1]])


def spoilt(row):
    """The same with `<turn>` for the last word."""
    return replace(row, input_ids=[*row.input_ids[:-2], 2, row.input_ids[-1]])


def word_task(x, y):
    """Write the first of two words, twice. Its id is the two tokens; the more the second one, the
    more difficult it is said to be."""
    return Task(f"{x} {y}", "rl", (Message("user", f"{x} {y}"),), (), {"difficulty": str(y - 8)})


class Remembering:
    """A model that computes the logits of an input once until other weights are loaded: episodes of
    a group begin with the same words."""

    def __init__(self, model):
        self.model, self.outputs = model, {}

    def __call__(self, input_ids):
        words = tuple(input_ids[0].tolist())
        if words not in self.outputs:
            self.outputs[words] = self.model(input_ids)
        return self.outputs[words]

    def load_state_dict(self, weights):
        self.outputs.clear()
        self.model.load_state_dict(weights)


def play_words(model, task, seed, *, given=(), is_greedy=False):
    """`<turn> x y <turn>`, a word by the agent, `<turn>` by the world, a word by the agent; half a
    point for each x. The first of its words are `given`."""
    x, y = map(int, task.task_id.split())
    generator = torch.Generator().manual_seed(seed)
    token_ids, mask, logprobs, turns = [2, x, y], [0] * 3, [0.0] * 3, []
    for place in range(2):
        token_ids, mask, logprobs = [*token_ids, 2], [*mask, 0], [*logprobs, 0.0]
        with torch.no_grad():
            distribution = model(torch.tensor([token_ids])).logits[0, -1].log_softmax(0)
        token = int(torch.multinomial(distribution.exp(), 1, generator=generator))
        is_given = place < len(given)
        token = given[place] if is_given else int(distribution.argmax()) if is_greedy else token
        token_ids.append(token)
        mask.append(int(not is_given))
        logprobs.append(0.0 if is_given else float(distribution[token]))
        turns.append(Turn(4 - 3 * place + is_given, 1 - is_given, 0, 1 + 2 * place))
    reward = (token_ids[4] == x) / 2 + (token_ids[6] == x) / 2
    messages = (*task.messages, Message("assistant", "one"), Message("tool", "{}"), Message("assistant", "two"))
    outcome = Outcome(reward == 1, reward == 1)
    return ScoredEpisode(
        Trajectory(
            task.task_id,
            messages,
            StopReason.DONE,
            seed,
            0,
            token_ids,
            mask,
            logprobs,
            scores={"first": float(token_ids[4] == x), "second": float(token_ids[6] == x)},
            reward=reward,
            turns=tuple(turns),
            outcome=outcome,
        )
    )


_untrained = functools.cache(tiny_model)


def expert_words(task, count):
    """The right words, that nobody knows how likely they were."""
    x, y = map(int, task.task_id.split())
    played = play_words(_untrained(), task, 0, given=(x, x)).trajectory
    traced = dataclasses.replace(
        played, token_ids=[2, x, y, 2, x, 2, x], mask=[0, 0, 0, 0, 1, 0, 1], logprobs=[0.0] * 7
    )
    return [ScoredEpisode(traced)] * count


def play_words_greedily(model, task):
    """The likeliest words."""
    return play_words(model, task, 0, is_greedy=True)
