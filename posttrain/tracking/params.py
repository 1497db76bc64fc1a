"""Knobs of the health alarms: the limit of each rule."""

from typing import Annotated

from pydantic import Field

from posttrain.runtime.knobs import Above, Below, Section, SmallCount


class AlarmParams(Section):
    """The limit of each rule in `tracking/alarms.py`; null turns a rule off."""

    steps: SmallCount
    start_steps: SmallCount
    zero_std: Annotated[float, Field(ge=0, lt=1)] | None
    no_signal: Annotated[float, Field(ge=0, lt=1)] | None
    turns_collapse: Below | None
    short_turns: Below | None
    entropy_collapse: Below | None
    entropy_eruption: Above | None
    kl: Annotated[float, Field(gt=0)] | None
    reward_hacking: Below | None
    engine_mismatch: Annotated[float, Field(gt=0)] | None
    forgetting: Above | None
