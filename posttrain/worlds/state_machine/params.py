"""The planner's section of `params.yaml`."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from posttrain.runtime.knobs import Frac, Section
from posttrain.worlds.params import WorldParams

MAX_AGENTS = 4  # owners that a process has at most
ProcessName = Literal["order", "incident", "release", "approval", "claim", "onboarding"]


class StateMachineFlawRates(Section):
    """Share of the demonstrations that show the flaw, where the task gives the occasion. The last
    two are of a worker's (`agent.worker`), of which older records have none."""

    takes_over: Frac
    believes_early: Frac
    ignores_correction: Frac
    believes_twice: Frac
    skips_update: Frac
    wrong_agent: Frac
    reports_early: Frac = 0.0
    gives_up: Frac = 0.0


class StateMachineParams(WorldParams):
    """The planner of `worlds/state_machine`. All splits but the tests are about `processes`; of the
    tests, `held_out_frac` are about `held_out_processes`, and `longer_frac` have from one report
    more than `max_reports` to twice as many. In `renamed_frac` of the sft and rl tasks the states
    and events have drawn words, so that a process must be read. In `noise_frac` of the tasks some
    reports are vague, late, repeated or wrong at first. `num_agents` share the work; with `is_solo`
    the planner has it all. With `is_state_shown` an update answers with the new state, else with
    the event."""

    example = (
        "{seed: 7, num_sft_tasks: 1200, num_rl_tasks: 640, num_dev_tasks: 128, num_test_tasks: 320, "
        "processes: [order, incident, release, approval], held_out_processes: [claim, onboarding], renamed_frac: 0.5, "
        "max_reports: 5, held_out_frac: 0.2, longer_frac: 0.2, noise_frac: 0.8, num_agents: 3, is_solo: false, "
        "is_state_shown: true, flaw_rates: {takes_over: 0.7, believes_early: 0.5, ignores_correction: 0.6, "
        "believes_twice: 0.5, skips_update: 0.1, wrong_agent: 0.1}}"
    )
    type: Literal["state_machine"]
    processes: Annotated[list[ProcessName], Field(min_length=1)]
    held_out_processes: list[ProcessName]
    renamed_frac: Frac
    max_reports: Annotated[int, Field(ge=4, le=12)]
    held_out_frac: Frac
    longer_frac: Frac
    noise_frac: Frac
    num_agents: Annotated[int, Field(ge=1, le=MAX_AGENTS)]
    is_solo: bool
    is_state_shown: bool
    flaw_rates: StateMachineFlawRates

    @model_validator(mode="after")
    def _parts_are_apart(self) -> "StateMachineParams":
        if both := {*self.processes} & {*self.held_out_processes}:
            raise ValueError(f"{min(both)} is trained and held out; list it in one of the two")
        if self.held_out_frac and not self.held_out_processes:
            raise ValueError(
                f"held_out_frac is {self.held_out_frac} and no process is held out; name one, or set it to 0"
            )
        if self.held_out_frac + self.longer_frac > 1:
            raise ValueError("held_out_frac and longer_frac sum to more than 1; they are shares of one test")
        return self
