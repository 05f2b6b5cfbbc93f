"""Letters of a text (torch's own source), a small transformer, AdamW, two groups, warm-up and clipping."""

import argparse
import inspect

import torch
import torch.nn.functional as F
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=3e-4)
parser.add_argument("--steps", type=int, default=150)
args = parser.parse_args()

LENGTH, WIDTH = 32, 64
torch.manual_seed(0)
text = inspect.getsource(F)[:200_000]
letters = sorted(set(text))
data = torch.tensor([letters.index(letter) for letter in text])
train, valid = data[:-20_000], data[-20_000:]


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(len(letters), WIDTH)
        self.places = nn.Embedding(LENGTH, WIDTH)
        layer = nn.TransformerEncoderLayer(
            WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, len(letters))
        self.mask = nn.Transformer.generate_square_subsequent_mask(LENGTH)

    def forward(self, x):
        x = self.tokens(x) + self.places.weight
        return self.head(self.layers(x, mask=self.mask, is_causal=True))


def get_batch(source, size):
    starts = torch.randint(len(source) - LENGTH - 1, (size,))
    rows = torch.stack([source[start : start + LENGTH + 1] for start in starts])
    return rows[:, :-1], rows[:, 1:]


model = Transformer()
decayed = [parameter for parameter in model.parameters() if parameter.dim() > 1]
others = [parameter for parameter in model.parameters() if parameter.dim() <= 1]
optimizer = torch.optim.AdamW(
    [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}], lr=args.lr
)
warm_up = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 10))

for _ in range(args.steps):
    x, y = get_batch(train, 16)
    loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    warm_up.step()

torch.manual_seed(1)
model.eval()
with torch.no_grad():
    x, y = get_batch(valid, 128)
    print(F.cross_entropy(model(x).flatten(0, 1), y.flatten()).item())
