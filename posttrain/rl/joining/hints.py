"""How much of the expert's way is given away: for each task less with each group in which one
succeeded."""

from collections.abc import Mapping


class Hints:
    """`start` of the expert's turns are given at first, `step` fewer with each success, until none
    are."""

    def __init__(self, *, start: float, step: float) -> None:
        self._start, self._step = start, step
        self._num_won: dict[str, int] = {}

    def share(self, task_id: str) -> float:
        """Of the expert's turns: 0.75, a step of 0.25 and one group with a success give 0.5."""
        return max(0.0, self._start - self._step * self._num_won.get(task_id, 0))

    def observe(self, task_id: str, *, is_won: bool) -> None:
        """A group of the task, and whether one of its episodes succeeded."""
        self._num_won[task_id] = self._num_won.get(task_id, 0) + is_won

    def state(self) -> Mapping[str, object]:
        """As JSON has it, for a checkpoint."""
        return dict(self._num_won)

    def restore(self, state: Mapping[str, int]) -> None:
        """The reverse."""
        self._num_won = dict(state)
