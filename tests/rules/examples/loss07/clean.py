import torch
from torch import nn

torch.manual_seed(0)
PAD = 0
model = nn.Sequential(nn.Embedding(12, 16), nn.Linear(16, 12))
optimizer = torch.optim.Adam(model.parameters())
for step in range(4):
    rows = [torch.randint(1, 12, (length,)) for length in (9, 4, 6, 3)]
    batch = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD)
    scores, target = model(batch[:, :-1]), batch[:, 1:]
    each = nn.functional.cross_entropy(scores.transpose(1, 2), target, reduction="none")
    mask = (target != PAD).float()
    loss = (each * mask).sum() / mask.sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
