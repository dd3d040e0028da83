"""CartPole-v1 in parallel lanes, each with the window of observations its agent has seen in the episode so far.

Shape legend: L lanes, H positions of history, F = 4 features of an observation, n transitions of one call.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from detaudit.core.errors import UsageError

FEATURES = 4
ACTIONS = 2


class Transitions(NamedTuple):
    """A batch of experience. `history` is right-aligned: the newest observation is last, `length` of them are real."""

    history: Tensor  # float32 [n, H, F]
    length: Tensor  # int64 [n]
    action: Tensor  # int64 [n]
    chance: Tensor  # float32 [n], probability with which the behaviour policy chose the action
    reward: Tensor  # float32 [n]
    terminal: Tensor  # bool [n], the pole fell; an episode cut off at 500 steps is not terminal
    next_observation: Tensor  # float32 [n, F]

    def to(self, device: torch.device) -> Transitions:
        """The same transitions on another device."""
        return Transitions(*(field.to(device) for field in self))


class CartPoleLanes:
    """`lanes` environments of gymnasium's own vector CartPole, stepped together on the CPU."""

    def __init__(self, lanes: int, horizon: int, seed: int) -> None:
        try:
            import gymnasium
        except ImportError as error:
            cure = "pip install 'detaudit[workloads]'"
            raise UsageError(f"per_rl needs gymnasium ({error}); install it with: {cure}") from None
        self._envs = gymnasium.make_vec("CartPole-v1", num_envs=lanes, vectorization_mode="vector_entry_point")
        first, _ = self._envs.reset(seed=seed)
        self.history_LHF = torch.zeros(lanes, horizon, FEATURES)
        self.length_L = torch.zeros(lanes, dtype=torch.int64)
        self.resetting_L = torch.zeros(lanes, dtype=torch.bool)
        self._remember(torch.from_numpy(first), torch.ones(lanes, dtype=torch.bool))

    def step(self, action_L: Tensor, chance_L: Tensor) -> Transitions:
        """Act in every lane. A lane whose episode has just ended spends this call on its reset: no transition."""
        observation, reward, terminal, truncated, _ = self._envs.step(action_L.numpy())
        observation_LF = torch.from_numpy(observation)
        terminal_L = torch.from_numpy(terminal.copy())
        kept_L = ~self.resetting_L
        made = Transitions(
            self.history_LHF[kept_L],
            self.length_L[kept_L],
            action_L[kept_L],
            chance_L[kept_L],
            torch.from_numpy(reward.copy())[kept_L],
            terminal_L[kept_L],
            observation_LF[kept_L],
        )
        self._remember(observation_LF, self.resetting_L)
        self.resetting_L = terminal_L | torch.from_numpy(truncated.copy())
        return made

    def _remember(self, observation_LF: Tensor, fresh_L: Tensor) -> None:
        self.history_LHF, self.length_L = extend(self.history_LHF, self.length_L * ~fresh_L, observation_LF)


def extend(history_nHF: Tensor, length_n: Tensor, observation_nF: Tensor) -> tuple[Tensor, Tensor]:
    """The window after one more observation, and its length (at most H). Where `length` is 0 the old window is void."""
    longer_nHF = torch.cat([history_nHF[:, 1:], observation_nF.unsqueeze(1)], dim=1)
    return longer_nHF, (length_n + 1).clamp(max=history_nHF.shape[1])
