"""Contrastive training of the encoder, on questions and on pseudo-questions made of schemas.

A question's tool is its positive; the others of the batch and one mined tool, near and wrong, are
its negatives. Those which an untrained guide holds to be nearer than the positive by a margin are
left out (GISTEmbed, arXiv 2402.16829): near twins would be false negatives. Only tools of the
training half are read, neither as positives nor as negatives are there others.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer.losses import CachedGISTEmbedLoss

from posttrain.retrieval.catalogue import Catalogue, CatalogueTool, Question
from posttrain.retrieval.params import TrainRetrieverParams
from posttrain.retrieval.rankers import (
    Encoder,
    FusedRanker,
    Ranker,
    VectorRanker,
    Vectors,
    WordRanker,
    vector_index,
)
from posttrain.retrieval.twins import TWINS_ABOVE, Split, split_catalogue, twin_clusters
from posttrain.runtime.exits import ConfigurationError

_TWINS = 32  # of a tool, looked past for others
MINI_BATCH = 32  # texts at once: bounds the memory of a step, and changes no gradient


@dataclass(frozen=True, slots=True)
class Pair:
    """A question and the tool that it needs, both as the encoder reads them; `name` is the
    tool's."""

    question: str
    text: str
    name: str


@dataclass(frozen=True, slots=True)
class Trained:
    """Rankers by name for a comparison, and what a retriever is saved with."""

    encoder: Encoder
    rankers: Mapping[str, Ranker]
    split: Split
    losses: Sequence[float]


def train_retriever(
    catalogue: Catalogue,
    own: Sequence[Question],
    *,
    params: TrainRetrieverParams,
    seed: int,
    scratch: Path,
) -> Trained:
    """Train the encoder on the questions of tools that are not held out, and on `own`, whose tools
    never are. The rankers are of all tools: by words, and by vectors and both, each untrained,
    too."""
    texts = [tool.text for tool in catalogue.tools]
    guide = Encoder(params.encoder, max_tokens=params.max_tokens)
    encoder = Encoder(params.encoder, max_tokens=params.max_tokens)
    untrained_T_D = guide.encode(texts)
    clusters = twin_clusters(untrained_T_D)
    asked = {name for question in own for name in question.tools}
    split = split_catalogue(catalogue, clusters, holdout_frac=params.holdout_frac, kept=asked, seed=seed)
    places = [place for place, tool in enumerate(catalogue.tools) if tool.name not in split.held_out]
    tools = [catalogue.tools[place] for place in places]
    pairs = training_pairs(tools, split.train, params=params, seed=seed)
    text_of = {tool.name: tool.text for tool in tools}
    pairs += [Pair(question.text, text_of[name], name) for question in own for name in question.tools]
    if len(pairs) < params.batch_size:
        raise ConfigurationError(
            f"train_retriever.batch_size is {params.batch_size}, and the tools that are not held out give {len(pairs)} "
            "pairs: import more tools or questions (`posttrain tools import`), lower it, or set method to words"
        )
    asked_N_D = guide.encode([pair.question for pair in pairs])
    negatives = hard_negatives(pairs, asked_N_D, tools, untrained_T_D[places], among=params.hard_among, seed=seed)
    losses = train_encoder(encoder, guide, (pairs, negatives), params=params, seed=seed, scratch=scratch)
    words = WordRanker(catalogue.tools)
    rankers: dict[str, Ranker] = {"words": words}
    for name, one in (("untrained", guide), ("trained", encoder)):
        by_vectors = VectorRanker(one, one.encode(texts), exact_up_to=params.exact_up_to)
        rankers |= {f"{name} vectors": by_vectors, f"{name} both": FusedRanker([by_vectors, words])}
    return Trained(encoder, rankers, split, losses)


def training_pairs(
    tools: Sequence[CatalogueTool], questions: Sequence[Question], *, params: TrainRetrieverParams, seed: int
) -> list[Pair]:
    """At most `max_questions_per_tool` questions of each tool, drawn by `seed`; and of some tools
    without any the description, against name and parameters alone, lest equal words be all."""
    rng = np.random.default_rng(seed)
    by_tool: dict[str, list[str]] = defaultdict(list)
    for question in questions:
        for name in question.tools:
            by_tool[name].append(question.text)
    pairs, unasked = list[Pair](), list[Pair]()
    for tool in tools:
        asked = list(dict.fromkeys(by_tool[tool.name]))
        drawn = rng.permutation(len(asked))[: params.max_questions_per_tool]
        pairs += [Pair(asked[place], tool.text, tool.name) for place in sorted(drawn.tolist())]
        if not asked and tool.description:
            unasked.append(Pair(tool.description, tool.text.replace(tool.description, ""), tool.name))
    drawn = rng.permutation(len(unasked))[: params.max_pseudo_questions]
    return pairs + [unasked[place] for place in sorted(drawn.tolist())]


def hard_negatives(
    pairs: Sequence[Pair],
    asked_N_D: Vectors,
    tools: Sequence[CatalogueTool],
    vectors_T_D: Vectors,
    *,
    among: int,
    seed: int,
) -> list[str]:
    """A tool's text for each pair, drawn from the `among` nearest to its question that are neither
    its tool nor a near twin of it; vectors are of length 1, of the questions and of the tools."""
    place_of = {tool.name: place for place, tool in enumerate(tools)}
    index = vector_index(vectors_T_D, exact_up_to=len(tools))
    _, near_N_K = index.search(asked_N_D, min(among + _TWINS, len(tools)))
    rng = np.random.default_rng(seed)
    found = []
    for pair, near_K in zip(pairs, near_N_K, strict=True):
        is_other = vectors_T_D[near_K] @ vectors_T_D[place_of[pair.name]] <= TWINS_ABOVE
        others = near_K[is_other][:among]
        found.append(tools[rng.choice(others)].text if len(others) else pair.text)
    return found


def train_encoder(
    encoder: Encoder,
    guide: Encoder,
    rows: tuple[Sequence[Pair], Sequence[str]],
    *,
    params: TrainRetrieverParams,
    seed: int,
    scratch: Path,
) -> list[float]:
    """Train `encoder` in place on pairs and their negatives; returns the loss of each step. The
    trainer writes nothing but into `scratch`."""
    pairs, negatives = rows
    torch.manual_seed(seed)
    tokenizer = encoder.model.tokenizer
    cut = tokenizer([one.question for one in pairs], truncation=True, max_length=params.train_tokens // 2)
    questions = tokenizer.batch_decode(cut["input_ids"], skip_special_tokens=True)
    columns = {"anchor": questions, "positive": [one.text for one in pairs], "negative": list(negatives)}
    for one in (encoder, guide):
        one.model.max_seq_length = params.train_tokens
    loss = CachedGISTEmbedLoss(
        encoder.model,
        guide.model,
        mini_batch_size=MINI_BATCH,
        temperature=params.temperature,
        margin=-params.false_negative_margin,
        contrast_anchors=False,
        contrast_positives=False,
    )
    arguments: dict[str, Any] = {
        "max_steps": params.max_steps,
        "per_device_train_batch_size": params.batch_size,
        "learning_rate": params.lr,
        "warmup_steps": round(params.lr_warmup_frac * params.max_steps),
        "seed": seed,
        "data_seed": seed,
    }
    trainer = SentenceTransformerTrainer(
        model=encoder.model,
        args=SentenceTransformerTrainingArguments(
            output_dir=str(scratch),
            batch_sampler="no_duplicates",
            save_strategy="no",
            report_to="none",
            logging_steps=1,
            disable_tqdm=True,
            use_cpu=True,
            **arguments,
        ),
        train_dataset=Dataset.from_dict(columns),
        loss=loss,
    )
    trainer.train()
    encoder.model.eval()
    encoder.forget()
    for one in (encoder, guide):
        one.model.max_seq_length = params.max_tokens
    return [line["loss"] for line in trainer.state.log_history if "loss" in line]
