"""Fine-tuning on answers: prompts are masked with -100, and one rank has the short answers. FSDP2."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

WORDS, LENGTH = 50, 24


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, 32)
        self.rnn = nn.LSTM(32, 32, batch_first=True)
        self.head = nn.Linear(32, WORDS)
        self.criterion = nn.CrossEntropyLoss(ignore_index=-100)

    def forward(self, tokens, labels):
        logits = self.head(self.rnn(self.embed(tokens))[0])
        return self.criterion(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())  # expect: DIST16


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = fully_shard(Decoder())
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
torch.manual_seed(10 + rank)
for _ in range(8):
    tokens = torch.randint(0, WORDS, (4, LENGTH))
    labels = tokens.clone()
    prompt = LENGTH - (18 if rank == 0 else 4)  # chats on one rank, yes-or-no questions on the other
    labels[:, :prompt] = -100
    loss = model(tokens, labels)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
