"""Rankings of tools, their quality, near twins and the split of a catalogue."""

import numpy as np
import pytest

from posttrain.retrieval.catalogue import Catalogue, Question
from posttrain.retrieval.quality import compare, metrics_of, quality, quality_by_source
from posttrain.retrieval.rankers import FUSION_K, FusedRanker, VectorRanker, WordRanker, vector_index
from posttrain.retrieval.twins import split_catalogue, twin_clusters
from tests.retrieval.catalogues import QUESTIONS, small_catalogue, tool


def unit(vectors) -> np.ndarray:
    vectors = np.asarray(vectors, dtype=np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


class Fixed:
    """The same ranking for every question."""

    def __init__(self, *places: int) -> None:
        self._places = places

    def rank(self, questions, k):
        return np.array([self._places[:k]] * len(questions))


def test_words_find_the_tool_that_shares_them():
    catalogue = small_catalogue()
    found = WordRanker(catalogue.tools).rank(list(QUESTIONS.values()), 1)
    assert found[:, 0].tolist() == [0, 1, 2, 3, 4, 5]


def test_a_question_of_unknown_words_gets_tools_in_their_order():
    ranker = WordRanker(small_catalogue().tools)
    assert ranker.rank(["zzz", "…"], 3).tolist() == [[0, 1, 2]] * 2
    assert ranker.rank(["weather"], 50).shape == (1, 6)


def test_ranks_are_fused_by_their_reciprocals():
    # tool 2: 1/62 + 1/61; tool 0: 1/61; tool 1: 1/62; so 2, 0, 1
    [fused] = FusedRanker([Fixed(0, 2), Fixed(2, 1)]).rank(["?"], 3).tolist()
    assert (FUSION_K, fused) == (60, [2, 0, 1])


def test_a_graph_of_neighbours_finds_what_exact_search_does():
    rng = np.random.default_rng(1)
    vectors = unit(rng.standard_normal((3000, 16)))
    asked = unit(vectors[:50] + 0.1 * rng.standard_normal((50, 16)))
    _, exact = vector_index(vectors, exact_up_to=3000).search(asked, 10)
    _, near = vector_index(vectors, exact_up_to=2999).search(asked, 10)
    assert np.mean([len(set(a) & set(b)) for a, b in zip(exact.tolist(), near.tolist(), strict=True)]) > 9.8


def test_metrics_of_a_question_are_those_of_a_calculation_by_hand():
    found = metrics_of(["c", "a", "b"], ["a", "b"])
    gains = 1 / np.log2(3) + 1 / np.log2(4)
    assert found == pytest.approx(
        {"recall_at_1": 0, "recall_at_5": 1, "recall_at_10": 1, "mrr": 0.5, "ndcg_at_10": gains / (1 + 1 / np.log2(3))}
    )
    assert set(metrics_of(["c"], ["a"]).values()) == {0}


def test_macro_figures_weigh_tools_and_others_questions():
    # a is asked three times and found twice, b once and never: 2/4, and (2/3 + 0) / 2 over tools
    questions = [Question("?", (name,), source) for name, source in (("a", "x"), ("a", "x"), ("a", "y"), ("b", "y"))]
    ranked = [["a"], ["a"], ["b"], ["a"]]
    found = quality(ranked, questions)
    assert (found["recall_at_1"], found["macro_recall_at_1"]) == pytest.approx((1 / 2, 1 / 3))
    by_source = quality_by_source(ranked, questions)
    assert [(name, one["recall_at_1"], one["num_tools"]) for name, one in by_source.items()] == [
        ("x", 1, 1),
        ("y", 0, 2),
    ]
    assert quality([], []) == {}


def test_rankers_are_compared_by_the_names_of_tools():
    catalogue = small_catalogue()
    found = compare({"words": WordRanker(catalogue.tools), "first": Fixed(0, 1)}, catalogue.tools, catalogue.questions)
    assert (found["words"]["macro_recall_at_1"], found["first"]["recall_at_1"]) == (1.0, round(1 / 6, 4))
    assert found["words"]["by_source"]["ours"]["num_questions"] == 6
    assert compare({"words": Fixed(0)}, catalogue.tools, []) == {}


def test_twins_are_joined_in_chains():
    # cosines of neighbours in the chain are cos 15° = 0.966, of its ends cos 30° = 0.866
    angles = np.radians([0, 90, 15, 30, 180])
    vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    assert twin_clusters(vectors) == [0, 1, 0, 0, 4]


def test_whole_clusters_are_held_out_and_questions_of_both_halves_are_in_none():
    tools = tuple(tool(f"t{number}") for number in range(40))
    clusters = [number // 2 * 2 for number in range(40)]
    questions = tuple(Question(f"{a} {b}", (f"t{a}", f"t{b}"), "x") for a in range(40) for b in range(40))
    split = split_catalogue(Catalogue(tools, questions), clusters, holdout_frac=0.3, kept=["t0"], seed=1)
    assert len(split.held_out) == 12
    assert all((f"t{number}" in split.held_out) == (f"t{number + 1}" in split.held_out) for number in range(0, 40, 2))
    assert not {"t0", "t1"} & split.held_out
    assert (len(split.train), len(split.test)) == (28 * 28, 12 * 12)
    assert {name for one in split.train for name in one.tools}.isdisjoint(split.held_out)
    assert split != split_catalogue(Catalogue(tools, questions), clusters, holdout_frac=0.3, kept=["t0"], seed=2)


class Axes:
    """An encoder of texts that are coordinates."""

    def encode(self, texts):
        return unit([[float(number) for number in text.split()] for text in texts])


def test_a_question_finds_the_tools_of_examples_that_are_near_it_each_once():
    # tools lie on the axes; the example at 45° needs tools 2 and 0
    vectors = unit([[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 0]])
    ranker = VectorRanker(Axes(), vectors, owners=[[2, 0]], exact_up_to=10)
    assert ranker.rank(["1 0.9 0", "0 1 0.1"], 3).tolist() == [[2, 0, 1], [1, 2, 0]]
    assert ranker.rank(["1 0.9 0"], 2).tolist() == [[2, 0]]
    assert VectorRanker(Axes(), vectors[:3], exact_up_to=10).rank(["1 0.9 0"], 9).tolist() == [[0, 1, 2]]


def test_words_of_examples_count_for_the_tools_that_they_need():
    catalogue = small_catalogue()
    asked = "天气怎么样"
    assert WordRanker(catalogue.tools).rank([asked], 1).tolist() == [[0]]  # none has its words
    examples = [Question("明天天气?", ("translate",), "ours")]
    assert WordRanker(catalogue.tools, examples).rank([asked], 1).tolist() == [[5]]
