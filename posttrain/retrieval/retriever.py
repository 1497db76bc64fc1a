"""Retriever as a folder: tools and example questions, how they are ranked, and the encoder with
their vectors where one is used."""

import shutil
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from posttrain.data.files import NOT_ASKED, write_json
from posttrain.retrieval.catalogue import Catalogue, CatalogueTool, read_catalogue, write_catalogue
from posttrain.retrieval.params import Ranking
from posttrain.runtime.exits import ConfigurationError

if TYPE_CHECKING:
    from posttrain.retrieval.rankers import Encoder, Ranker

FOLDER = Path("data/models/retriever")
_RANKING, _VECTORS, _ENCODER = "ranking.json", "vectors.npy", "encoder"


class Retriever:
    """Tools by name, ranked for a question. The encoder is loaded by the first question."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        read = read_catalogue(folder)
        self.tools: Sequence[CatalogueTool] = read.tools
        self._examples = read.questions

    def nearest(self, questions: Sequence[str], k: int) -> list[tuple[str, ...]]:
        """The names of the `k` nearest tools of each question, the nearest first."""
        if not questions:
            return []
        places_Q_K = self._ranker.rank(questions, k)
        return [tuple(self.tools[place].name for place in places_K) for places_K in places_Q_K.tolist()]

    @cached_property
    def _ranker(self) -> "Ranker":
        # here, as FAISS and torch take seconds that who only reads the tools need not wait for
        from posttrain.retrieval.rankers import Encoder, FusedRanker, VectorRanker, WordRanker

        ranking = Ranking.model_validate_json((self._folder / _RANKING).read_bytes())
        by_words = WordRanker(self.tools, self._examples)
        if ranking.method == "words":
            return by_words
        encoder = Encoder(self._folder / _ENCODER, max_tokens=ranking.max_tokens)
        vectors_E_D = np.load(self._folder / _VECTORS, allow_pickle=False)
        place_of = {tool.name: place for place, tool in enumerate(self.tools)}
        owners = [[place_of[name] for name in example.tools] for example in self._examples]
        by_vectors = VectorRanker(encoder, vectors_E_D, owners=owners, exact_up_to=ranking.exact_up_to)
        return by_vectors if ranking.method == "vectors" else FusedRanker([by_vectors, by_words])


def save_retriever(folder: Path, catalogue: Catalogue, ranking: Ranking, encoder: "Encoder | None" = None) -> None:
    """Write the folder; the catalogue's questions are examples, by which their tools are found,
    too. `encoder` is None by words."""
    shutil.rmtree(folder, ignore_errors=True)
    write_catalogue(catalogue, folder)
    if encoder is not None:
        encoder.model.save_pretrained(str(folder / _ENCODER), create_model_card=False, safe_serialization=True)
        texts = [*(tool.text for tool in catalogue.tools), *(one.text for one in catalogue.questions)]
        np.save(folder / _VECTORS, encoder.encode(texts))
    own = {key: value for key, value in ranking.model_dump().items() if key in Ranking.model_fields}
    write_json(folder / _RANKING, own)


def load_retriever(folder: Path = FOLDER) -> Retriever:
    """Raises ConfigurationError where none was trained."""
    if not (folder / _RANKING).is_file():
        why = "it was not asked for then" if (folder / NOT_ASKED).is_file() else "it is not there"
        raise ConfigurationError(
            f"agent.tools wants a retriever, and {folder} holds none ({why}): `dvc repro train_retriever` makes it"
        )
    return Retriever(folder)
