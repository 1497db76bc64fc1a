"""The tiny model of the tests: its sizes as Hugging Face's configs name them, and as
`params.yaml`."""

from benchmarks.arms import SMALL

CONFIG = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}
KNOBS = {name.removeprefix("model."): value for name, value in SMALL.items() if name.startswith("model.")}
ONLINE = SMALL["train_policy.algorithm"]  # two steps of learning online
