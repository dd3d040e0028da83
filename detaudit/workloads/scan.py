"""The selective scan of Mamba (Gu and Dao, 2023, algorithm 2) in plain torch, and a block around it.

Shape legend: B batch, L positions in time, D inner channels, N state size, M model width.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def selective_scan(
    u_BLD: Tensor, delta_BLD: Tensor, a_DN: Tensor, b_BLN: Tensor, c_BLN: Tensor, d_D: Tensor
) -> tuple[Tensor, Tensor]:
    """Run `h_t = exp(delta_t A) h_{t-1} + delta_t B_t u_t`, `y_t = C_t h_t + D u_t` from `h = 0`.

    Returns `y` of shape `[B, L, D]` and the last state `[B, D, N]`. A position whose delta is 0 leaves the state
    as it is: that is how padding is skipped. The loop over L is serial, so nothing depends on a scan's tree shape.
    """
    decay_BLDN = torch.exp(delta_BLD.unsqueeze(-1) * a_DN)
    drive_BLDN = (delta_BLD * u_BLD).unsqueeze(-1) * b_BLN.unsqueeze(2)
    state_BDN = torch.zeros_like(drive_BLDN[:, 0])
    states = []
    for decay_BDN, drive_BDN in zip(decay_BLDN.unbind(1), drive_BLDN.unbind(1), strict=True):
        state_BDN = torch.addcmul(drive_BDN, decay_BDN, state_BDN)
        states.append(state_BDN)
    y_BLD = (torch.stack(states, dim=1) * c_BLN.unsqueeze(2)).sum(-1)
    return y_BLD + d_D * u_BLD, state_BDN


class SelectiveBlock(nn.Module):
    """Mamba's gated block without its convolution: project, scan, gate, project back, add the input.

    `forward(x_BLM, mask_BL)` gives `[B, L, M]` and the last scan state `[B, D, N]`. `mask` is 1.0 where a position
    is real and 0.0 where it is padding.
    """

    def __init__(self, width: int, inner: int, state: int) -> None:
        super().__init__()
        self.state = state
        self.in_proj = nn.Linear(width, 2 * inner, bias=False)
        self.bc_proj = nn.Linear(inner, 2 * state, bias=False)
        self.delta_proj = nn.Linear(inner, inner)
        self.out_proj = nn.Linear(inner, width, bias=False)
        self.a_log = nn.Parameter(torch.log(torch.arange(1.0, state + 1)).repeat(inner, 1))
        self.skip = nn.Parameter(torch.ones(inner))
        # Mamba starts its steps small; softplus(bias) = 0.1 remembers about ten positions.
        nn.init.constant_(self.delta_proj.bias, math.log(math.expm1(0.1)))

    def forward(self, x_BLM: Tensor, mask_BL: Tensor) -> tuple[Tensor, Tensor]:
        u_BLD, gate_BLD = self.in_proj(x_BLM).chunk(2, dim=-1)
        u_BLD = F.silu(u_BLD)
        delta_BLD = F.softplus(self.delta_proj(u_BLD)) * mask_BL.unsqueeze(-1)
        b_BLN, c_BLN = self.bc_proj(u_BLD).chunk(2, dim=-1)
        y_BLD, state_BDN = selective_scan(u_BLD, delta_BLD, -torch.exp(self.a_log), b_BLN, c_BLN, self.skip)
        return x_BLM + self.out_proj(y_BLD * F.silu(gate_BLD)), state_BDN
