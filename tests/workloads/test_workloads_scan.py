"""The selective scan against a loop over plain floats, padding, gradients."""

import math

import torch

from detaudit.workloads.scan import SelectiveBlock, selective_scan

B, L, D, N = 2, 5, 3, 4


def operands(dtype=torch.float64):
    made = torch.Generator().manual_seed(0)
    random = lambda *shape: torch.randn(*shape, generator=made, dtype=dtype)  # noqa: E731
    return random(B, L, D), random(B, L, D).exp(), -random(D, N).exp(), random(B, L, N), random(B, L, N), random(D)


def naive_scan(u, delta, a, b, c, d):
    """Algorithm 2 of the paper, one number at a time."""
    y = [[[0.0] * D for _ in range(L)] for _ in range(B)]
    h = [[[0.0] * N for _ in range(D)] for _ in range(B)]
    for i in range(B):
        for t in range(L):
            for j in range(D):
                for n in range(N):
                    decay = math.exp(delta[i][t][j] * a[j][n])
                    h[i][j][n] = decay * h[i][j][n] + delta[i][t][j] * b[i][t][n] * u[i][t][j]
                y[i][t][j] = sum(c[i][t][n] * h[i][j][n] for n in range(N)) + d[j] * u[i][t][j]
    return y, h


def test_it_is_the_naive_loop():
    given = operands()
    y, state = selective_scan(*given)
    expected_y, expected_state = naive_scan(*(tensor.tolist() for tensor in given))
    torch.testing.assert_close(y, torch.tensor(expected_y, dtype=torch.float64))
    torch.testing.assert_close(state, torch.tensor(expected_state, dtype=torch.float64))


def test_gradients_are_those_of_finite_differences():
    given = [tensor.requires_grad_() for tensor in operands()]
    assert torch.autograd.gradcheck(selective_scan, given)


def test_padding_changes_nothing():
    torch.manual_seed(0)
    block = SelectiveBlock(width=6, inner=4, state=3)
    real = torch.randn(2, 3, 6)
    padded = torch.cat([torch.randn(2, 4, 6), real], dim=1)
    mask = torch.tensor([0.0] * 4 + [1.0] * 3).expand(2, 7)
    y, state = block(real, torch.ones(2, 3))
    padded_y, padded_state = block(padded, mask)
    torch.testing.assert_close(padded_y[:, 4:], y)
    torch.testing.assert_close(padded_state, state)


def test_the_agent_s_state_fits_the_issue():
    from detaudit.workloads.agent import INNER, STATE

    assert 128 * INNER * STATE <= 16_384
