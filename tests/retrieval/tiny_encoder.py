"""A sentence-transformers model of 9,000 parameters with its own words, made from scratch."""

from pathlib import Path

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from transformers import BertConfig, BertModel, BertTokenizerFast

from posttrain.retrieval.catalogue import Catalogue, words


def write_tiny_encoder(catalogue: Catalogue, folder: Path, *, seed: int = 1) -> Path:
    texts = [*(tool.text for tool in catalogue.tools), *(one.text for one in catalogue.questions)]
    known = sorted({word for text in texts for word in words(text)} | set(".,;:?"))
    base = folder / "bert"
    base.mkdir(parents=True)
    (base / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *known]))
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=5 + len(known),
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=64,
    )
    body = BertModel(config)
    for shared in (body.embeddings.position_embeddings, body.embeddings.token_type_embeddings):
        shared.weight.data.zero_()  # or all texts are near twins
    body.save_pretrained(base)
    BertTokenizerFast(str(base / "vocab.txt")).save_pretrained(base)
    modules = [Transformer(str(base), max_seq_length=64), Pooling(32)]
    SentenceTransformer(modules=modules, device="cpu").save_pretrained(str(folder / "encoder"))
    return folder / "encoder"
