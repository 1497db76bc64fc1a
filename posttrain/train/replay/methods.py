"""The methods that params.yaml offers under `join`: a line for each, whose knobs and code stand in
a file of its own."""

from typing import Annotated

from pydantic import Field

from posttrain.train.replay.best import BestReplay
from posttrain.train.replay.expert import ExpertReplay
from posttrain.train.replay.hints import HintReplay
from posttrain.train.replay.none import NoReplay

ReplayParams = Annotated[NoReplay | ExpertReplay | BestReplay | HintReplay, Field(discriminator="type")]
