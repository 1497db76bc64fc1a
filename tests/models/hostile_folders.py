"""Model folders as a stranger could leave them: each a small Qwen2 folder with one thing wrong."""

import json
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

Change = Callable[[Path], None]


def hostile_folder(name: str, good: Path, target: Path) -> Path:
    """A copy of the folder `good` at `target` with the change of that name."""
    shutil.copytree(good, target)
    HOSTILE[name](target)
    return target


def _weights(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Change:
    def apply(folder: Path) -> None:
        file = folder / "model.safetensors"
        save_file(change(load_file(file)), file, metadata={"format": "pt"})

    return apply


def _value(number: float, *, everywhere: bool) -> Change:
    def change(weights: dict[str, Any]) -> dict[str, Any]:
        for weight in weights.values() if everywhere else [weights["model.layers.1.mlp.up_proj.weight"]]:
            weight.view(-1)[slice(None) if everywhere else slice(7, 8)] = number
        return weights

    return _weights(change)


def _without(part: str) -> Change:
    return _weights(lambda weights: {key: weight for key, weight in weights.items() if part not in key})


def _header(change: Callable[[dict[str, Any]], Any]) -> Change:
    """Changes the header of the safetensors file; `change` may return text."""

    def apply(folder: Path) -> None:
        file = folder / "model.safetensors"
        content = file.read_bytes()
        (size,) = struct.unpack("<Q", content[:8])
        header = change(json.loads(content[8 : 8 + size]))
        text = (header if isinstance(header, str) else json.dumps(header)).encode()
        file.write_bytes(struct.pack("<Q", len(text)) + text + content[8 + size :])

    return apply


def _of_embedding(key: str, value: Any) -> Change:
    name = "model.embed_tokens.weight"
    return _header(lambda header: header | {name: header[name] | {key: value}})


def _bytes(name: str, change: Callable[[bytes], bytes]) -> Change:
    def apply(folder: Path) -> None:
        file = folder / name
        file.write_bytes(change(file.read_bytes() if file.exists() else b""))

    return apply


def _text(name: str, text: str) -> Change:
    return _bytes(name, lambda _: text.encode())


def _json(name: str, change: Callable[[dict[str, Any]], Any]) -> Change:
    return _bytes(name, lambda content: json.dumps(change(json.loads(content or b"{}"))).encode())


def _config(**changes: Any) -> Change:
    return _json("config.json", lambda config: config | changes)


def _template(text: str) -> Change:
    """Written before the good template, which it leaves as it is where it ends."""
    return _bytes("chat_template.jinja", lambda good: text.encode() + good)


def _index(names: Any) -> Change:
    return _text("model.safetensors.index.json", json.dumps({"metadata": {}, "weight_map": names}))


def _pattern(pattern: str) -> Change:
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return _all(_READS_TOKENIZER_JSON, _json("tokenizer.json", lambda content: content | {"pre_tokenizer": split}))


# of other types transformers takes the vocabulary alone from the file
_READS_TOKENIZER_JSON = _config(model_type="mistral", head_dim=16)


def _all(*changes: Change) -> Change:
    def apply(folder: Path) -> None:
        for change in changes:
            change(folder)

    return apply


def _doubled(content: dict[str, Any]) -> dict[str, Any]:
    doubling = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
    return content | {"normalizer": {"type": "Sequence", "normalizers": [doubling] * 40}}


def _with_tokens(first: int, count: int) -> Change:
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}

    def change(content: dict[str, Any]) -> dict[str, Any]:
        added = [{"id": first + number, "content": f"<t{number}>", **plain} for number in range(count)]
        return content | {"added_tokens": content["added_tokens"] + added}

    return _json("tokenizer.json", change)


def _of_config_type(folder: Path) -> None:
    _config(model_type="llama", architectures=["LlamaForCausalLM"])(folder)


def _link(name: str, target: str) -> Change:
    def apply(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(target)

    return apply


def _linked_out(name: str) -> Change:
    def apply(folder: Path) -> None:
        outside = folder.parent / f"{folder.name}-outside"
        (folder / name).rename(outside)
        (folder / name).symlink_to(outside)

    return apply


def _pipe(name: str) -> Change:
    def apply(folder: Path) -> None:
        (folder / name).unlink()
        os.mkfifo(folder / name)

    return apply


def _instead(*names: str, by: str) -> Change:
    """`names` removed, and the adapters of another's base, or a pickle, in their place."""

    def apply(folder: Path) -> None:
        for name in names:
            (folder / name).unlink()
        if by == "adapters":
            _text("adapter_config.json", '{"peft_type": "LORA", "base_model_name_or_path": "nobody/base"}')(folder)
            save_file({"base_model.model.lora_A.weight": torch.zeros(1)}, folder / "adapter_model.safetensors")
        else:
            torch.save({}, folder / by)

    return apply


_DEEP = "[" * 200_000
_LOOPS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
_OWN_CODE = {"auto_map": {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model", "AutoTokenizer": "own.Tok"}}

HOSTILE: dict[str, Change] = {
    # weights that are not the model's
    "prefix of another class": _weights(lambda weights: {f"net.{key}": weight for key, weight in weights.items()}),
    "no tensor of the model": _weights(lambda _: {"other": torch.zeros(3)}),
    "config of another type": _of_config_type,
    "all values NaN": _value(float("nan"), everywhere=True),
    "one value infinite": _value(float("inf"), everywhere=False),
    "a matrix missing": _without("layers.1.mlp.up_proj"),
    "a layer more than config.json has": _config(num_hidden_layers=1),
    "a layer fewer than config.json has": _without("layers.1."),
    "other widths than config.json has": _config(intermediate_size=128),
    "an embedding of other size": _config(vocab_size=4_096),
    # the file of the weights
    "weights cut off": _bytes("model.safetensors", lambda content: content[:-100]),
    "header cut off": _bytes("model.safetensors", lambda content: content[:50]),
    "header of 2^60 bytes": _bytes("model.safetensors", lambda content: struct.pack("<Q", 2**60) + content[8:]),
    "header that is no JSON": _header(lambda _: "{]"),
    "header with deep brackets": _header(lambda _: '{"a": ' + _DEEP),
    "negative shape": _of_embedding("shape", [-1, 32]),
    "shape of 2^62": _of_embedding("shape", [2**62, 32]),
    "offsets beyond the file": _of_embedding("data_offsets", [0, 2**40]),
    "offsets backwards": _of_embedding("data_offsets", [64, 0]),
    "unknown type of numbers": _of_embedding("dtype", "F3"),
    "empty weights": _text("model.safetensors", ""),
    "a pickle named safetensors": lambda folder: torch.save({}, folder / "model.safetensors"),
    "a pickle beside": lambda folder: torch.save({}, folder / "pytorch_model.bin"),
    "a pickle alone": _instead("model.safetensors", by="pytorch_model.bin"),
    "an index that names a pickle": _index({"model.norm.weight": "weights.pkl"}),
    "an index that leads out": _index({"model.norm.weight": "../../weights.safetensors"}),
    "an index of missing parts": _index({"model.norm.weight": "model-00001-of-00002.safetensors"}),
    "an index that is a list": _index([1, 2]),
    "an index with deep brackets": _text("model.safetensors.index.json", _DEEP),
    "adapters without their model": _instead("model.safetensors", "config.json", by="adapters"),
    # config.json
    "a size as text": _config(hidden_size="16"),
    "a size below 0": _config(hidden_size=-16),
    "a size that is NaN": _config(hidden_size=float("nan")),
    "a hundred million layers": _config(num_hidden_layers=10**8),
    "a vocabulary of 10^12": _config(vocab_size=10**12),
    "a size of 10^12": _config(intermediate_size=10**12),
    "a number of 6,000 digits": _bytes("config.json", lambda _: b'{"hidden_size": ' + b"9" * 6_000 + b"}"),
    "no heads": _config(num_attention_heads=0),
    "heads that do not divide": _config(num_attention_heads=5),
    "an activation that is code": _config(hidden_act="os.system"),
    "a type of numbers that is none": _config(dtype="evil"),
    "own code": _json("config.json", lambda config: config | _OWN_CODE | {"model_type": "own"}),
    "no type": _json("config.json", lambda config: {"hidden_size": 16}),
    "no language model": _config(model_type="vit"),
    "a table of 10^12 positions": _text(
        "config.json",
        '{"model_type":"gpt2","n_positions":1000000,"n_embd":8,"n_head":1,"n_layer":1,"vocab_size":8}',
    ),
    "config with deep brackets": _text("config.json", _DEEP),
    "config that is a list": _text("config.json", "[]"),
    "empty config": _text("config.json", ""),
    "a config that is a pipe": _pipe("config.json"),
    "generation that cannot be saved": _text("generation_config.json", '{"do_sample": false, "temperature": 0.3}'),
    # the tokenizer
    "a pattern that tries all cuts": _pattern(r"(a+)+$|(\s+)+$|((A|A)+)+$"),
    "a pattern that is none": _pattern("(("),
    "a text that doubles forty times": _all(_READS_TOKENIZER_JSON, _json("tokenizer.json", _doubled)),
    "tokenizer with deep brackets": _text("tokenizer.json", _DEEP),
    "empty tokenizer": _text("tokenizer.json", ""),
    "two million added tokens": _with_tokens(261, 2_000_000),
    "tokens beyond the embedding": _with_tokens(10_000, 1),
    "a token of number -1": _with_tokens(-1, 1),
    "tokenizer_config with deep brackets": _text("tokenizer_config.json", _DEEP),
    # the chat template
    "endless loops": _template(_LOOPS),
    "loops for a long text": _template("{% if messages[0].content | length > 4000 %}" + _LOOPS + "{% endif %}"),
    "loops where tools are offered": _template("{% if tools %}" + _LOOPS + "{% endif %}"),
    "a macro of itself": _template("{% macro m(n) %}{{ m(n) }}{{ m(n) }}{% endmacro %}{{ m(1) }}"),
    "a text of 10^10 letters": _template("{{ 'a' * 10 ** 10 }}"),
    "a power without end": _template("{{ 9 ** (9 ** 9) }}"),
    "a width of 10^10": _template("{{ '%9999999999d' % 1 }}"),
    "a list that grows": _template(
        "{% set ns = namespace(x='a') %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}"
    ),
    "a division by zero": _template("{{ 1 // 0 }}"),
    "a way out of the sandbox": _template("{{ ''.__class__.__mro__[1].__subclasses__() }}"),
    "a template that is no template": _template("{% if %}"),
    "a template that refuses": _template("{{ raise_exception('no') }}"),
    "a template that includes a file": _template("{% include '/etc/passwd' %}"),
    # links
    "config linked out": _linked_out("config.json"),
    "tokenizer linked to another's file": _link("tokenizer.json", "/etc/hostname"),
    "weights linked to themselves": _link("model.safetensors", "model.safetensors"),
}
