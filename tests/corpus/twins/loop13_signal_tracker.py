"""Streams a long signal in chunks through a leaky reservoir; input and output weights are learnt."""

import math

import torch
from torch import nn

CHUNK = 12
STREAMS = 16


class LeakyReservoir(nn.Module):
    """Fixed recurrent weights, learnt projections. The state goes on from chunk to chunk."""

    def __init__(self, inputs, units, leak=0.3, radius=0.8):
        super().__init__()
        self.leak = leak
        self.project = nn.Linear(inputs, units)
        self.readout = nn.Linear(units, 1)
        self.register_buffer("recurrent", radius * torch.randn(units, units) / math.sqrt(units))

    def initial_state(self, streams):
        return torch.zeros(streams, self.recurrent.shape[0])

    def forward(self, chunk, state):
        states = []
        for x in chunk.unbind(dim=1):
            drive = torch.tanh(self.project(x) + state @ self.recurrent)
            state = (1 - self.leak) * state + self.leak * drive
            states.append(state)
        return self.readout(torch.stack(states, dim=1)).squeeze(-1), state


def signals(streams, length, generator):
    t = torch.arange(length) / 10.0
    phase = 6.28 * torch.rand(streams, 1, generator=generator)
    pitch = 0.5 + torch.rand(streams, 1, generator=generator)
    clean = torch.sin(pitch * t + phase)
    noisy = clean + 0.3 * torch.randn(streams, length, generator=generator)
    return noisy.unsqueeze(-1), clean


def run_epoch(model, optimizer, noisy, clean):
    """One pass over the whole signal, one update per chunk."""
    model.train()
    state = model.initial_state(noisy.shape[0])
    losses = []
    for start in range(0, noisy.shape[1], CHUNK):
        piece = slice(start, start + CHUNK)
        state = state.detach()
        estimate, state = model(noisy[:, piece], state)
        loss = nn.functional.mse_loss(estimate, clean[:, piece])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return sum(losses) / len(losses)


@torch.no_grad()
def follow(model, noisy, clean):
    model.eval()
    estimate, _ = model(noisy, model.initial_state(noisy.shape[0]))
    return nn.functional.mse_loss(estimate, clean).item()


def main():
    torch.manual_seed(31)
    generator = torch.Generator().manual_seed(31)
    noisy, clean = signals(STREAMS, 20 * CHUNK, generator)
    test_noisy, test_clean = signals(STREAMS, 10 * CHUNK, generator)
    model = LeakyReservoir(1, 48)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for epoch in range(4):
        loss = run_epoch(model, optimizer, noisy, clean)
        print(f"epoch {epoch}: loss {loss:.4f}  test {follow(model, test_noisy, test_clean):.4f}")


if __name__ == "__main__":
    main()
