"""The agent's network and losses: tiles and scan over the history of observations, then a value and a policy head.

Shape legend: B batch, H history, F features, K tiles active per observation, T tiles, M model width, D inner width,
N scan state.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from detaudit.workloads.cartpole import ACTIONS, FEATURES, Transitions, extend
from detaudit.workloads.races import racing_gather
from detaudit.workloads.scan import SelectiveBlock

HORIZON = 16
WIDTH = 16
INNER = 16
STATE = 8
DISCOUNT = 0.99
ENTROPY = 0.01
TILINGS = 2
_TILES = 32
_REACH = (2.4, 3.0, 0.21, 3.0)  # |position|, |velocity|, |angle|, |angular velocity| that the tiles span

GATHERED_PER_SAMPLE = HORIZON * TILINGS * FEATURES * WIDTH


class Outlook(NamedTuple):
    """What the network makes of a batch of histories."""

    encoding: Tensor  # float32 [B, M]
    scan_state: Tensor  # float32 [B, D, N]
    value: Tensor  # float32 [B]
    logits: Tensor  # float32 [B, 2]


class TileEncoder(nn.Module):
    """Tile coding plus a linear view of each observation, one selective block; the newest position plus the mean.

    Tile coding as in Sutton and Barto, 2018, section 9.5.4: two tilings of each feature, half a tile apart.
    `racing` switches the tile table to a gather whose backward races (fault `encoder-race`).
    """

    def __init__(self) -> None:
        super().__init__()
        self.racing = False
        self.tiles = nn.Parameter(torch.zeros(TILINGS * FEATURES * _TILES, WIDTH))
        self.observe = nn.Linear(FEATURES, WIDTH)
        self.block = SelectiveBlock(WIDTH, INNER, STATE)
        self.norm = nn.LayerNorm(WIDTH)
        self.register_buffer("reach", torch.tensor(_REACH), persistent=False)

    def forward(self, history_BHF: Tensor, length_B: Tensor) -> tuple[Tensor, Tensor]:
        scaled_BHF = history_BHF / self.reach
        x_BHM = self.observe(scaled_BHF) + self._tile_sum(scaled_BHF)
        position_H = torch.arange(history_BHF.shape[1], device=history_BHF.device)
        mask_BH = (position_H >= history_BHF.shape[1] - length_B.unsqueeze(1)).to(x_BHM.dtype)
        y_BHM, state_BDN = self.block(x_BHM, mask_BH)
        mean_BM = (y_BHM * mask_BH.unsqueeze(-1)).sum(1) / length_B.unsqueeze(1)
        return self.norm(y_BHM[:, -1] + mean_BM), state_BDN

    def _tile_sum(self, scaled_BHF: Tensor) -> Tensor:
        place_BHF = (scaled_BHF + 1.0) * (_TILES / 2)
        place_BHK = torch.cat([place_BHF + tiling / TILINGS for tiling in range(TILINGS)], dim=-1)
        tile_BHK = place_BHK.long().clamp(0, _TILES - 1)
        tile_BHK = tile_BHK + _TILES * torch.arange(TILINGS * FEATURES, device=tile_BHK.device)
        if self.racing:
            return racing_gather(self.tiles, tile_BHK).sum(2)
        # A matrix product adds in a fixed order on CPU and CUDA alike; gathers and embeddings do not on every device.
        hot_BHT = scaled_BHF.new_zeros(*tile_BHK.shape[:2], self.tiles.shape[0]).scatter_(2, tile_BHK, 1.0)
        return hot_BHT @ self.tiles


class ActorCritic(nn.Module):
    """The encoder with a value head and a policy head. `forward(history_BHF, length_B)` gives an `Outlook`."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = TileEncoder()
        self.value = nn.Sequential(nn.Linear(WIDTH, 64), nn.SiLU(), nn.Linear(64, 1))
        self.policy = nn.Sequential(nn.Linear(WIDTH, 64), nn.SiLU(), nn.Linear(64, ACTIONS))

    def forward(self, history_BHF: Tensor, length_B: Tensor) -> Outlook:
        encoding_BM, state_BDN = self.encoder(history_BHF, length_B)
        return Outlook(encoding_BM, state_BDN, self.value(encoding_BM).squeeze(-1), self.policy(encoding_BM))


def bootstrap_target(target: ActorCritic, batch: Transitions) -> Tensor:
    """One-step target `r + gamma V'(s')` from the target network, float32 `[B]`, without gradient."""
    with torch.no_grad():
        following = target(*extend(batch.history, batch.length, batch.next_observation))
        return batch.reward + DISCOUNT * following.value * ~batch.terminal


def actor_critic_loss(
    outlook: Outlook, target_B: Tensor, batch: Transitions, weight_B: Tensor
) -> tuple[Tensor, Tensor]:
    """The 0-dim loss and the temporal-difference error `[B]` (detached).

    Off-policy correction by a truncated importance ratio min(1, pi/mu), as in V-trace (Espeholt et al., 2018)
    with a horizon of one step; both terms carry the replay's importance weights.
    """
    log_policy_BA = F.log_softmax(outlook.logits, dim=-1)
    # A one-hot product, not a gather, for the same reason as in the encoder.
    chosen_B = (log_policy_BA * F.one_hot(batch.action, ACTIONS)).sum(-1)
    error_B = (target_B - outlook.value).detach()
    trust_B = weight_B * (chosen_B.detach().exp() / batch.chance).clamp(max=1.0)
    value_loss = (trust_B * F.smooth_l1_loss(outlook.value, target_B, reduction="none")).mean()
    policy_loss = -(trust_B * error_B * chosen_B).mean()
    entropy = -(log_policy_BA.exp() * log_policy_BA).sum(-1).mean()
    return value_loss + policy_loss - ENTROPY * entropy, error_B
