"""The methods that params.yaml offers under `credit`: a line for each, whose knobs and maths stand
in a file of its own."""

from typing import Annotated

from pydantic import Field

from posttrain.train.advantages.discounted import DiscountedCredit
from posttrain.train.advantages.episode import EpisodeCredit
from posttrain.train.advantages.gae import GaeCredit
from posttrain.train.advantages.imitation import ImitationCredit
from posttrain.train.advantages.scores import ScoresCredit
from posttrain.train.advantages.states import StatesCredit
from posttrain.train.advantages.turn_scores import TurnScoresCredit

CreditParams = Annotated[
    EpisodeCredit | ScoresCredit | DiscountedCredit | TurnScoresCredit | StatesCredit | GaeCredit | ImitationCredit,
    Field(discriminator="type"),
]
