"""A language model that is not scored on its first prediction, with tied weights."""

import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(4)
V, T, D = 24, 20, 48


def stream(n):
    """Second-order pattern: the next token is the sum of the last two, with a little noise."""
    x = torch.randint(V, (n, T + 1))
    for t in range(2, T + 1):
        nxt = (x[:, t - 1] + x[:, t - 2]) % V
        noise = torch.rand(n) < 0.02
        x[:, t] = torch.where(noise, x[:, t], nxt)
    return x


class TiedLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(V, D)
        nn.init.normal_(self.embed.weight, std=0.2)
        self.pos = nn.Parameter(torch.zeros(T, D))
        self.layer = nn.TransformerEncoderLayer(
            D, 4, 4 * D, dropout=0.0, batch_first=True, norm_first=True, activation="gelu"
        )
        self.norm = nn.LayerNorm(D)
        self.head = nn.Linear(D, V, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x):
        # True marks what may not be looked at
        block = torch.ones(x.size(1), x.size(1), dtype=torch.bool).triu(1)
        h = self.embed(x) + self.pos[: x.size(1)]
        h = self.layer(h, src_mask=block)
        h = self.layer(h, src_mask=block)  # the same layer twice, as in a universal transformer
        return self.head(self.norm(h))


model = TiedLM()
decay, plain = [], []
for name, p in model.named_parameters():
    (decay if p.dim() > 1 and "embed" not in name else plain).append(p)
groups = [{"params": decay, "weight_decay": 0.01}, {"params": plain, "weight_decay": 0.0}]
opt = torch.optim.AdamW(groups, lr=3e-3)
sched = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=3e-3, total_steps=24)

val = stream(300)
for step in range(24):
    seq = stream(64)
    logits = model(seq[:, :-1])
    # The first target cannot be predicted.
    loss = F.cross_entropy(logits[:, 1:].reshape(-1, V), seq[:, 2:].reshape(-1))
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
    sched.step()
    if step % 8 == 7:
        model.eval()
        with torch.no_grad():
            pred = model(val[:, :-1])[:, 1:].argmax(-1)
        model.train()
        accuracy = (pred == val[:, 2:]).float().mean().item()
        print(f"step {step + 1} loss {loss.item():.4f} val accuracy {accuracy:.4f}")
