"""Trains a small language model on a device. The self-test writes this file into a folder and runs it there.

Usage: python script.py DEVICE [MISTAKE]. Prints a digest of the weights, the waits for the device after the
first steps, and the peak of its memory.
"""

import hashlib
import sys
import warnings
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

NUM_STEPS, NUM_FIRST = 40, 9
WORDS, LENGTH, WIDTH = 64, 16, 64


class Model(nn.Module):
    """Embeds tokens, lets them attend to earlier ones, and scores the next one."""

    def __init__(self, mistake: str) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.attend = nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.dropout = nn.Dropout(0.1)
        self.head = nn.Linear(WIDTH, WORDS)
        self.sees_future = mistake == "future"

    def forward(self, tokens: Tensor) -> Tensor:
        """Return scores of the next token at each position."""
        x = self.embed(tokens)
        mask = torch.ones(tokens.shape[1], tokens.shape[1], dtype=torch.bool, device=tokens.device).triu(1)
        attended, _ = self.attend(x, x, x, attn_mask=None if self.sees_future else mask, need_weights=False)
        scores: Tensor = self.head(self.dropout(x + attended))
        return scores


def count_waits(device: torch.device) -> Any:
    """Return a function that returns how often the host has waited for the device; None if it is unknown."""
    module = torch.get_device_module(device)
    if hasattr(module, "num_waits"):  # a device for tests
        return module.num_waits
    if device.type != "cuda":
        return lambda: None
    caught = warnings.catch_warnings(record=True)
    found = caught.__enter__()
    warnings.simplefilter("always")
    torch.cuda.set_sync_debug_mode("warn")
    return lambda: sum("synchronizing" in str(item.message) for item in found or ())


device, mistake = torch.device(sys.argv[1]), "".join(sys.argv[2:])
if mistake != "seed":
    torch.manual_seed(3)
tokens = torch.randint(0, WORDS, (NUM_STEPS * 8, 1)) + torch.arange(LENGTH + 1) * 3
order = torch.Generator().manual_seed(5)
data = TensorDataset(tokens % WORDS)
loader = DataLoader(data, batch_size=8, shuffle=True, pin_memory=device.type != "cpu", generator=order)
model = Model(mistake).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
waits, before = count_waits(device), None
for step, (batch,) in enumerate(loader):
    if step == NUM_FIRST:
        before = waits()
    batch = batch.to(device, non_blocking=True)  # noqa: PLW2901 - as scripts do
    loss = F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
    if mistake != "zero":
        optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
num_waits = None if before is None else waits() - before
peak = torch.accelerator.max_memory_allocated(device) if device.type not in ("cpu", "mps") else None
bits = hashlib.sha256()
for item in model.state_dict().values():
    bits.update(item.cpu().contiguous().view(torch.uint8).numpy().tobytes())
print(f"selftest: digest={bits.hexdigest()[:16]} waits={num_waits} peak={peak}", file=sys.stderr)
