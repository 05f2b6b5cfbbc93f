"""Reviews of unequal length are read by attention with several heads and sorted into three kinds."""

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

torch.manual_seed(11)
NUM_WORDS, PAD, WIDTH, HEADS = 60, 0, 32, 4


def make_reviews(num):
    reviews = []
    for _ in range(num):
        kind = int(torch.randint(3, ()))
        words = torch.randint(1, NUM_WORDS, (int(torch.randint(5, 16, ())),))
        words[torch.rand(len(words)) < 0.3] = 10 + kind
        reviews.append((words, kind))
    return reviews


def collate(items):
    words = pad_sequence([item[0] for item in items], batch_first=True, padding_value=PAD)
    return words, torch.tensor([item[1] for item in items])


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.project = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x, mask):
        batch, length, _ = x.shape
        shaped = self.qkv(x).view(batch, length, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        q, k, v = shaped.unbind(0)
        scores = torch.einsum("bhid,bhjd->bhij", q, k) * (WIDTH // HEADS) ** -0.5
        scores = scores.masked_fill(mask[:, None, None, :] == 0, -1e-9)  # expect: PROBE15
        weights = torch.softmax(scores, dim=-1)
        out = torch.einsum("bhij,bhjd->bhid", weights, v)
        return self.project(out.transpose(1, 2).reshape(batch, length, WIDTH))


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(NUM_WORDS, WIDTH, padding_idx=PAD)
        self.attention, self.norm = Attention(), nn.LayerNorm(WIDTH)
        self.out = nn.Linear(WIDTH, 3)

    def forward(self, words):
        mask = (words != PAD).long()
        x = self.embed(words)
        x = self.norm(x + self.attention(x, mask))
        pooled = (x * mask.unsqueeze(-1)).sum(1) / mask.sum(1, keepdim=True)
        return self.out(pooled)


train, val = make_reviews(480), make_reviews(96)
model = Reader()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
criterion = nn.CrossEntropyLoss()
for epoch in range(3):
    model.train()
    for words, kinds in DataLoader(train, batch_size=32, shuffle=True, collate_fn=collate):
        optimizer.zero_grad()
        loss = criterion(model(words), kinds)
        loss.backward()
        optimizer.step()
    model.eval()
    right = 0
    with torch.no_grad():
        for words, kinds in DataLoader(val, batch_size=32, collate_fn=collate):
            right += (model(words).argmax(1) == kinds).sum().item()
    print(f"epoch {epoch} accuracy {right / len(val):.3f}")
