"""Two models small enough to make on the spot: one from scratch with the project's own chat, one as
a team might bring it."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from posttrain.models.codec import ChatCodec
from posttrain.models.loading import save_model
from posttrain.models.scratch import scratch_model
from posttrain.models.tokenizer import train_tokenizer
from tests.models.episodes import SCRATCH_PARAMS, TOOLS, asked_back, conversation
from tests.tiny import CONFIG

# In the manner of Qwen2.5's: a system text that lists the tools' schemas, results inside a user's
# turn, arguments through `tojson`.
QWEN_LIKE_TEMPLATE = """
{%- set opening = messages[0].content if messages[0].role == "system" else "You are a helpful assistant." %}
{{- "<|im_start|>system\\n" + opening }}
{%- if tools %}{{- "\\n\\n# Tools\\n" }}{% for tool in tools %}{{- "\\n" + tool | tojson }}{% endfor %}{% endif %}
{{- "<|im_end|>\\n" }}
{%- for message in messages %}
{%- if message.role == "user" %}{{- "<|im_start|>user\\n" + message.content + "<|im_end|>\\n" }}
{%- elif message.role == "assistant" %}{{- "<|im_start|>assistant" }}
{%- if message.content %}{{- "\\n" + message.content }}{% endif %}
{%- for call in message.tool_calls or [] %}
{{- '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
{{- (call.function.arguments | tojson) + '}\\n</tool_call>' }}
{%- endfor %}{{- "<|im_end|>\\n" }}
{%- elif message.role == "tool" %}
{%- if loop.first or messages[loop.index0 - 1].role != "tool" %}{{- "<|im_start|>user" }}{% endif %}
{{- "\\n<tool_response>\\n" + message.content + "\\n</tool_response>" }}
{%- if loop.last or messages[loop.index0 + 1].role != "tool" %}{{- "<|im_end|>\\n" }}{% endif %}
{%- endif %}{%- endfor %}
{%- if add_generation_prompt %}{{- "<|im_start|>assistant\\n" }}{% endif %}
"""


@pytest.fixture(scope="session")
def scratch_tokenizer() -> PreTrainedTokenizerFast:
    conversations = [conversation(number) for number in range(40)] + [asked_back()] * 40
    names = [tool["function"]["name"] for tool in TOOLS]
    return train_tokenizer(conversations, tool_names=names, vocab_size=500, max_length=256)


@pytest.fixture(scope="session")
def scratch_codec(scratch_tokenizer: PreTrainedTokenizerFast) -> ChatCodec:
    return ChatCodec(scratch_tokenizer)


@pytest.fixture(scope="session")
def scratch_folder(scratch_tokenizer: PreTrainedTokenizerFast, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model from scratch, to be read only."""
    folder = tmp_path_factory.mktemp("scratch") / "model"
    model = scratch_model(SCRATCH_PARAMS, tokenizer=scratch_tokenizer, max_context_tokens=256, seed=1)
    save_model(model, scratch_tokenizer, folder)
    return folder


@pytest.fixture(scope="session")
def qwen_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_qwen_folder(tmp_path_factory.mktemp("qwen"))


def write_qwen_folder(folder: Path, texts: Sequence[str] = ()) -> Path:
    """A Qwen2-architecture model in Hugging Face format; its tokens are bytes, parts of the words
    of `texts`, and the markers."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={letter: index for index, letter in enumerate(letters)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    if texts:
        trainer = trainers.BpeTrainer(vocab_size=1000, initial_alphabet=letters, show_progress=False)
        backend.train_from_iterator(texts, trainer)
    special = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
    backend.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in special])
    backend.add_tokens([AddedToken(text, normalized=False) for text in ("<tool_call>", "</tool_call>")])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    tokenizer.chat_template = QWEN_LIKE_TEMPLATE.strip()
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        **CONFIG,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    torch.manual_seed(0)
    save_model(Qwen2ForCausalLM(config), tokenizer, folder)
    return folder


@pytest.fixture
def rows(scratch_tokenizer: PreTrainedTokenizerFast) -> torch.Tensor:
    """Four of 24 tokens, of which any may follow any."""
    torch.manual_seed(1)
    return torch.randint(len(scratch_tokenizer), (4, 24))
