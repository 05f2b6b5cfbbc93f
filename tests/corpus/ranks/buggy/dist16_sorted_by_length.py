"""Sentences sorted by length and dealt out in blocks: one rank has the long ones."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.nn.utils.rnn import pad_sequence

PAD = 0


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(40, 16, padding_idx=PAD)
        self.out = nn.Linear(16, 40)

    def forward(self, words):
        return self.out(torch.tanh(self.embed(words)))


def sentences(rank, world):
    generator = torch.Generator().manual_seed(1)
    found = [torch.randint(1, 40, (int(n),), generator=generator) for n in torch.randint(3, 40, (96,), generator=generator)]
    found.sort(key=len)
    block = len(found) // world
    return found[rank * block : (rank + 1) * block]


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DDP(Tagger())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    own = sentences(rank, world)
    order = torch.randperm(len(own), generator=torch.Generator().manual_seed(2)).tolist()
    for start in range(0, len(own), 8):
        words = pad_sequence([own[place] for place in order[start : start + 8]], batch_first=True, padding_value=PAD)
        logits = model(words[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), words[:, 1:].flatten(), ignore_index=PAD)  # expect: DIST16
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


main()
