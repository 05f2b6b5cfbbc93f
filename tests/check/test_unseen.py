"""The last line of `check` names what was not seen, and nothing that the script does."""

from pathlib import Path

from tests.check.test_check import MENDED, check, write

BUSY = """
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 1)
torch.save(model.state_dict(), "model.pt")
model.load_state_dict(torch.load("model.pt"))
compiled = torch.compile(model, backend="eager")
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 4)
scaler = torch.amp.GradScaler("cpu")
data = torch.utils.data.TensorDataset(torch.randn(32, 4))
for (x,) in torch.utils.data.DataLoader(data, batch_size=8, shuffle=True):
    loss = (compiled(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    scheduler.step()
"""


def test_what_the_script_does_is_not_among_what_was_not_seen(tmp_path: Path) -> None:
    write(tmp_path, BUSY)
    done = check(tmp_path, "--device", "cpu", "train.py")
    (line,) = [line for line in done.stdout.splitlines() if " rules ran" in line]
    assert "not seen: several processes" in line, done.stdout + done.stderr


def test_what_is_not_seen_is_named_in_words_and_its_rules_with_v(tmp_path: Path) -> None:
    write(tmp_path, MENDED)
    shown = check(tmp_path, "-v", "train.py").stdout
    first = (
        "not seen: a data loader, a scheduler, gradient clipping, gradient scaling, a loaded checkpoint and "
    )
    assert first in shown and "did not apply: LOOP05" in shown
    assert "not seen: a scheduler\n" in check(tmp_path, "--select", "LOOP10", "train.py").stdout
    assert "1 rule ran\n" in check(tmp_path, "--select", "LOOP01", "train.py").stdout
