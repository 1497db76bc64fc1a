"""Training of the encoder: its pairs and negatives; it learns, and has the same bytes again."""

import numpy as np
import pytest

from posttrain.config.params import load_params
from posttrain.retrieval.catalogue import Catalogue, Question
from posttrain.retrieval.quality import compare
from posttrain.retrieval.rankers import Encoder
from posttrain.retrieval.retriever import Retriever, save_retriever
from posttrain.retrieval.training import Pair, hard_negatives, train_retriever, training_pairs
from posttrain.runtime.exits import ConfigurationError
from tests.retrieval.catalogues import QUESTIONS, small_catalogue, tool
from tests.retrieval.tiny_encoder import write_tiny_encoder


def knobs(encoder, **changes):
    small = {"method": "vectors", "encoder": str(encoder), "max_steps": 20, "batch_size": 6, "lr": 3e-3}
    return load_params().train_retriever.model_copy(update={**small, "holdout_frac": 0.3, **changes})


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return write_tiny_encoder(small_catalogue(), tmp_path_factory.mktemp("tiny"))


def test_a_tool_has_so_many_questions_or_its_description_against_the_rest_of_its_text():
    tools = small_catalogue().tools[:2]
    questions = [Question(f"weather {number}", ("get_weather",), "x") for number in range(9)]
    few = knobs("none", max_questions_per_tool=3, max_pseudo_questions=1)
    pairs = training_pairs(tools, questions, params=few, seed=1)
    assert [pair.name for pair in pairs] == ["get_weather"] * 3 + ["getStockPrice"]
    assert {pair.text for pair in pairs[:3]} == {tools[0].text}
    assert pairs[-1] == Pair("Last price of a share.", "get stock price.  symbol: ticker of the share", "getStockPrice")
    assert pairs != training_pairs(tools, questions, params=few, seed=2)


def test_a_hard_negative_is_near_and_neither_the_tool_nor_its_twin():
    tools = [tool("needed"), tool("twin"), tool("near"), tool("far")]
    vectors = np.array([[1, 0], [0.999, 0.0447], [0.8, 0.6], [-1, 0]], dtype=np.float32)
    asked = np.array([[1, 0]] * 8, dtype=np.float32)
    pairs = [Pair("?", "needed.", "needed")] * 8
    assert set(hard_negatives(pairs, asked, tools, vectors, among=1, seed=1)) == {"near."}
    assert set(hard_negatives(pairs, asked, tools, vectors, among=4, seed=1)) == {"near.", "far."}


def test_training_finds_the_tools_of_its_questions_and_has_the_same_bytes_again(encoder, tmp_path):
    own = [Question(text, (name,), "world") for name, text in QUESTIONS.items()]
    catalogue = Catalogue(small_catalogue().tools)
    first, again = (
        train_retriever(catalogue, own, params=knobs(encoder), seed=1, scratch=tmp_path / name) for name in "ab"
    )
    found = compare(first.rankers, catalogue.tools, own)
    assert found["trained vectors"]["recall_at_1"] == 1 > found["untrained vectors"]["recall_at_1"]
    assert first.losses[-1] < first.losses[0] / 2
    vectors, same = (one.encoder.encode(list(QUESTIONS)).tobytes() for one in (first, again))
    assert (first.losses, vectors) == (again.losses, same)
    save_retriever(tmp_path / "saved", catalogue, knobs(encoder, method="both"), first.encoder)
    nearest = Retriever(tmp_path / "saved").nearest(list(QUESTIONS.values()), 3)
    assert [names[0] for names in nearest] == list(QUESTIONS)
    assert not list((tmp_path / "a").glob("checkpoint*"))


def test_an_encoder_keeps_the_vectors_of_the_texts_that_it_read_last(encoder, monkeypatch):
    monkeypatch.setattr("posttrain.retrieval.rankers._MAX_KNOWN", 2)
    read, texts = Encoder(encoder, max_tokens=16), list(QUESTIONS)[:4]
    vectors = read.encode(texts)
    assert list(read._known) == texts[2:]
    assert read.encode(texts[2:]).tobytes() == vectors[2:].tobytes()


def test_what_is_held_out_is_in_no_pair(encoder, tmp_path):
    trained = train_retriever(
        small_catalogue(), [], params=knobs(encoder, max_steps=1, batch_size=4), seed=1, scratch=tmp_path
    )
    assert len(trained.split.held_out) == 2
    assert {name for one in trained.split.test for name in one.tools} == trained.split.held_out
    assert len(trained.split.train) == 4


def test_fewer_pairs_than_a_batch_are_refused(encoder, tmp_path):
    with pytest.raises(ConfigurationError, match=r"batch_size is 9, .* 4 pairs"):
        train_retriever(small_catalogue(), [], params=knobs(encoder, batch_size=9), seed=1, scratch=tmp_path)
