"""Which tokens a model from scratch has: a byte-level BPE in which a name, a code or a price is cut the same way wherever it stands.

A small model learns to copy a value from a tool's result into its answer only if the value has the same tokens in both. Hence every digit and every
non-ASCII character (Han above all) is one token and never part of a longer one, a JSON key takes its quotes and its neighbours' punctuation with it
so that nothing merges across the edge of a value, and proper names are kept out of the text from which merges are learnt: a name that was seen would
become one token, and an unseen one could not be copied. Characters never seen fall back to their UTF-8 bytes.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from posttrain.exits import ConfigurationError
from posttrain.models.chat_template import AGENT_MARKERS, END, PAD, ROLE_MARKERS, scratch_template
from posttrain.types import Message

PIECES = r'(?:[{}\[\],"]*"[A-Za-z_]+":)+[\[{]*"?|[A-Za-z_]+|\d|[ \-.()]|[^\x00-\x7F]|[^A-Za-z_\d \-.()\x80-\x{10FFFF}]+'
MIN_PAIR_COUNT = 20  # a merge seen less often would leave its token untrained
_NUM_BYTES = 256


def train_tokenizer(
    conversations: Iterable[Sequence[Message]], *, tool_names: Iterable[str], vocab_size: int, max_length: int
) -> PreTrainedTokenizerFast:
    """The tokenizer for these conversations, with at most `vocab_size` tokens; equal input gives equal bytes.

    Each tool name and marker is one token. Raises ConfigurationError where the characters of the conversations alone do not fit.
    """
    texts = [text for messages in conversations for text in _texts(messages)]
    added = [*ROLE_MARKERS, *AGENT_MARKERS, *sorted(set(tool_names))]
    characters = _non_ascii_characters(texts)
    room = vocab_size - len(added) - _NUM_BYTES - len(characters)
    if room < 0:
        raise ConfigurationError(
            f"model.vocab_size is {vocab_size}, but the conversations need {vocab_size - room}: {_NUM_BYTES} bytes, {len(added)} markers and "
            f"tool names, {len(characters)} characters such as {''.join(characters[:8])}. Each must be one token to be copied: raise model.vocab_size"
        )
    backend = _learn_merges(_without_names(texts), num_merges=room, characters=characters)
    backend.add_special_tokens([AddedToken(marker, normalized=False, special=True) for marker in ROLE_MARKERS])
    backend.add_tokens([AddedToken(text, normalized=False) for text in added[len(ROLE_MARKERS) :]])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=END, pad_token=PAD, padding_side="right", model_max_length=max_length)
    tokenizer.chat_template = scratch_template()
    return tokenizer


def _learn_merges(texts: Iterable[str], *, num_merges: int, characters: Sequence[str]) -> Tokenizer:
    """Byte-level BPE whose vocabulary is the 256 bytes, the merges, and `characters` whole.

    `ignore_merges` takes a piece that stands in the vocabulary as it is: a Han character is one token without the two merges that would build it from
    three bytes and the half characters they would leave in the vocabulary.
    """
    learner = _with_pieces(Tokenizer(models.BPE()))
    trainer = trainers.BpeTrainer(
        vocab_size=_NUM_BYTES + num_merges,
        min_frequency=MIN_PAIR_COUNT,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    learner.train_from_iterator((_ascii_only(text) for text in texts), trainer)
    learnt = json.loads(learner.to_str())["model"]
    vocabulary: dict[str, int] = dict(sorted(learnt["vocab"].items(), key=lambda item: item[1]))
    for character in characters:
        vocabulary[_as_bytes(character)] = len(vocabulary)
    merges = [(left, right) for left, right in learnt["merges"]]
    return _with_pieces(Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=True)))


def _with_pieces(backend: Tokenizer) -> Tokenizer:
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(PIECES), behavior="isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    backend.decoder = decoders.ByteLevel()
    return backend


def _texts(messages: Sequence[Message]) -> Iterator[str]:
    """Everything of a conversation that a model from scratch reads or writes; the system text is not."""
    for message in messages:
        if message.role != "system":
            yield message.content
        if message.reasoning_content:
            yield message.reasoning_content
        for call in message.tool_calls:
            yield call.arguments
            yield f'","arguments":{call.arguments}}}'  # as it stands behind the name, which is a token of its own


def _non_ascii_characters(texts: Iterable[str]) -> list[str]:
    """Most frequent first, ties by code point."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(character for character in text if not character.isascii())
    return sorted(counts, key=lambda character: (-counts[character], character))


def _without_names(texts: Sequence[str]) -> list[str]:
    """The texts without the ASCII words of any value that stands under a key ending in `name` or `names` or holding `alias`, in whichever text."""
    words: set[str] = set()
    for text in texts:
        if text.startswith("{"):
            words.update(word for name in _names_in(text) for word in re.findall(r"[A-Za-z]+", name))
    return [re.sub(r"[A-Za-z_]+", lambda found: "" if found[0] in words else found[0], _without_name_values(text)) for text in texts]


def _without_name_values(text: str) -> str:
    """A digit in place of each value: never merged, so the punctuation around it is learnt as it stands around any value."""
    return re.sub(r'("[A-Za-z_]*(?:names?|alias(?:es)?)":)"[^"]*"', r'\1"0"', text)


def _names_in(text: str) -> Iterator[str]:
    try:
        content = json.loads(text)
    except ValueError:  # a malformed call: its names stand in the result that follows, or were never seen
        return
    yield from _named_values(content, under_name=False)


def _named_values(value: Any, *, under_name: bool) -> Iterator[str]:
    if isinstance(value, str):
        if under_name:
            yield value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _named_values(inner, under_name=bool(re.search(r"names?$|alias", key)))
    elif isinstance(value, list):
        for inner in value:
            yield from _named_values(inner, under_name=under_name)


def _ascii_only(text: str) -> str:
    return re.sub(r"[^\x00-\x7F]", " ", text)


def _as_bytes(text: str) -> str:
    """The text as the byte-level alphabet writes it."""
    ((piece, _),) = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text)
    return piece
