"""The weight of the KL term."""

from collections.abc import Mapping
from typing import Any

from posttrain.rl.params import AdaptiveKl, KlParams, NoKl


class KlWeight:
    def __init__(self, params: KlParams) -> None:
        self._params, self.weight = params, 0.0 if isinstance(params, NoKl) else params.weight

    def hear(self, kl: float) -> None:
        if isinstance(self._params, AdaptiveKl):
            error = min(max(kl / self._params.target - 1, -0.2), 0.2)
            self.weight *= 1 + error / self._params.horizon

    def state(self) -> Mapping[str, object]:
        return {"weight": self.weight}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.weight = state["weight"]
