"""Tag sequences of different lengths; per-token losses by hand."""
import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(15)
TAGS = 4


class Tagger(nn.Module):
    def __init__(self, d=6, h=24):
        super().__init__()
        self.conv = nn.Conv1d(d, h, 3, padding=1)
        self.out = nn.Linear(h, TAGS)

    def forward(self, x):
        return self.out(torch.relu(self.conv(x.transpose(1, 2))).transpose(1, 2))


def sample(n=24, longest=14):
    lengths = torch.randint(4, longest + 1, (n,))
    lengths[0] = longest
    mask = torch.arange(longest)[None] < lengths[:, None]
    x = torch.randn(n, longest, 6) * mask.unsqueeze(-1)
    tags = x[..., :TAGS].argmax(-1) * mask
    return x, tags, mask


def sequence_loss(logits, tags, mask):
    losses = F.cross_entropy(logits.reshape(-1, TAGS), tags.reshape(-1), reduction="none")  # expect: LOSS07
    losses = losses.view(mask.shape)
    return losses.mean()  # expect: LOSS07


model = Tagger()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
for step in range(50):
    x, tags, mask = sample()
    loss = sequence_loss(model(x), tags, mask)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print(step, loss.item())
