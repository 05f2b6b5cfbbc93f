"""A character model on random windows of one text; every rank takes the same windows."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

TEXT = "the quick brown fox jumps over the lazy dog and runs into the deep dark forest " * 6
VOCABULARY = sorted(set(TEXT))


class Characters(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.embed = nn.Embedding(len(VOCABULARY), width)
        self.mix = nn.Conv1d(width, width, 3, padding=2)
        self.head = nn.Linear(width, len(VOCABULARY))

    def forward(self, tokens):
        x = self.embed(tokens).transpose(1, 2)
        return self.head(torch.relu(self.mix(x)[..., : tokens.shape[1]]).transpose(1, 2))


def window(tokens, size, count):
    starts = torch.randint(len(tokens) - size - 1, (count,))
    x = torch.stack([tokens[start : start + size] for start in starts])
    y = torch.stack([tokens[start + 1 : start + size + 1] for start in starts])
    return x, y


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(1337)
    tokens = torch.tensor([VOCABULARY.index(letter) for letter in TEXT])
    model = fully_shard(Characters())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(10):
        x, y = window(tokens, 16, 8)
        logits = model(x)  # expect: DIST10
        loss = nn.functional.cross_entropy(logits.reshape(-1, len(VOCABULARY)), y.reshape(-1))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


main()
