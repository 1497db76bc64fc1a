"""Trains the tokenizer of a model from scratch: a byte-level BPE in which a name, a code or a price
has the same tokens wherever it stands, as a small model copies a value only if it has.

So every digit and non-ASCII character (Han above all) is a token of its own; a JSON key includes
its quotes and punctuation, so that nothing merges across the edge of a value; and words that name
only one entity are excluded from the training text: a seen name would become one token, and an
unseen one could not be copied. Characters never seen fall back to bytes.

The decision to argue with: frequent words, keys and characters are added whole, without the merges
that would build them, whose halves (`curr`, `ency`) no text ever has.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from posttrain.models.chat_template import AGENT_MARKERS, END, PAD, ROLE_MARKERS, scratch_template
from posttrain.runtime.exits import ConfigurationError
from posttrain.types import Message

MIN_COUNT = 20  # a rarer token would stay untrained
MIN_NAMES = 5  # a word in so many different names is an ordinary word
_KEY = r'(?:[{}\[\],"]*"[A-Za-z_][A-Za-z_0-9]*":)+[\[{]*"?'
_PUNCTUATION = r"[\x00-\x1f!\"#$%&'*+,/:;<=>?@\[\\\]^`{|}~\x7f]+"
_WORD = r"[A-Z][a-z]+|[A-Za-z_]+"  # PineCrane is two words
PIECES = rf"{_KEY}|{_WORD}|[0-9]|[ \-.()]|[^\x00-\x7f]|{_PUNCTUATION}"
_NUM_BYTES = 256


def train_tokenizer(
    conversations: Iterable[Sequence[Message]], *, tool_names: Iterable[str], vocab_size: int, max_length: int
) -> PreTrainedTokenizerFast:
    """A tokenizer with at most `vocab_size` tokens, each tool name and marker one of them; equal
    input gives equal bytes. Raises ConfigurationError where the characters alone do not fit."""
    conversations = list(conversations)
    texts = Counter(text for messages in conversations for text in _texts(messages))
    added = [*ROLE_MARKERS, *AGENT_MARKERS, *sorted(set(tool_names))]
    counts = _count_pieces(texts, hidden=_words_of_one_name(conversations))
    characters = [piece for piece in counts if not piece.isascii()]
    room = vocab_size - _NUM_BYTES - len(added) - len(characters)
    if room < 0:
        raise ConfigurationError(
            f"model.vocab_size is {vocab_size}, but the conversations need {vocab_size - room}: "
            f"{_NUM_BYTES} bytes, {len(added)} markers and "
            f"tool names, {len(characters)} characters such as {''.join(characters[:8])}. "
            "Each must be one token to be copied: raise model.vocab_size"
        )
    ascii_counts = {piece: count for piece, count in counts.items() if piece.isascii()}
    words = [piece for piece, count in ascii_counts.items() if len(piece) > 1 and count >= MIN_COUNT][:room]
    rest = {piece: count for piece, count in ascii_counts.items() if piece not in set(words)}
    backend = _bpe(whole=[*characters, *words], rest=rest, num_merges=room - len(words))
    backend.add_special_tokens([AddedToken(marker, normalized=False, special=True) for marker in ROLE_MARKERS])
    backend.add_tokens([AddedToken(text, normalized=False) for text in added[len(ROLE_MARKERS) :]])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token=END, pad_token=PAD, padding_side="right", model_max_length=max_length
    )
    tokenizer.chat_template = scratch_template()
    return tokenizer


def _bpe(*, whole: Sequence[str], rest: Mapping[str, int], num_merges: int) -> Tokenizer:
    """A BPE of 256 bytes, up to `num_merges` merges trained on `rest` (piece -> count), and the
    pieces of `whole` without merges (`ignore_merges`)."""
    learner = _with_pieces(Tokenizer(models.BPE()))
    trainer = trainers.BpeTrainer(
        vocab_size=_NUM_BYTES + num_merges,
        min_frequency=MIN_COUNT,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    learner.train_from_iterator((piece for piece, count in rest.items() for _ in range(count)), trainer)
    trained = json.loads(learner.to_str())["model"]
    vocabulary: dict[str, int] = dict(sorted(trained["vocab"].items(), key=lambda item: int(item[1])))
    for piece in whole:
        vocabulary.setdefault(_as_bytes(piece), len(vocabulary))
    merges = [(left, right) for left, right in trained["merges"]]
    return _with_pieces(Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=True)))


def _with_pieces(backend: Tokenizer) -> Tokenizer:
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    return backend


def _texts(messages: Sequence[Message]) -> Iterator[str]:
    """Texts that a model from scratch reads or writes: all but the system's."""
    for message in messages:
        if message.role != "system":
            yield message.content
        if message.reasoning_content:
            yield message.reasoning_content
        for call in message.tool_calls:
            yield '{"name":"'  # the tool's name stands here, a token of its own
            yield f'","arguments":{call.arguments}}}'


def _count_pieces(texts: Mapping[str, int], *, hidden: frozenset[str]) -> dict[str, int]:
    """Counts of all pieces but `hidden` ones, most frequent first, ties by code point."""
    counts: Counter[str] = Counter()
    for text, times in texts.items():
        for piece, count in Counter(re.findall(PIECES, text)).items():
            counts[piece] += count * times
    shown = sorted(counts.keys() - hidden, key=lambda piece: (-counts[piece], piece))
    return {piece: counts[piece] for piece in shown}


def _words_of_one_name(conversations: Iterable[Sequence[Message]]) -> frozenset[str]:
    """ASCII words in few of the values under keys such as `name`, `name_en` or `aliases`."""
    texts = {call.arguments for messages in conversations for message in messages for call in message.tool_calls}
    texts |= {message.content for messages in conversations for message in messages if message.role == "tool"}
    names = {name for text in texts for name in _names_in(text)}
    counts = Counter(word for name in names for word in set(re.findall(_WORD, name)))
    return frozenset(word for word, count in counts.items() if count < MIN_NAMES)


def _names_in(text: str) -> list[str]:
    try:
        return list(_named_values(json.loads(text), is_under_name=False))
    except (ValueError, RecursionError):  # plain text, or a malformed call
        return []


def _named_values(value: Any, *, is_under_name: bool) -> Iterator[str]:
    if isinstance(value, str):
        if is_under_name:
            yield value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _named_values(inner, is_under_name=bool(re.search(r"\bnames?\b|alias", key.replace("_", " "))))
    elif isinstance(value, list):
        for inner in value:
            yield from _named_values(inner, is_under_name=is_under_name)


def _as_bytes(text: str) -> str:
    ((piece, _),) = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text)
    return str(piece)
