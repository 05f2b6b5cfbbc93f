"""Translate number words: reverse the order and substitute every symbol."""
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)
torch.manual_seed(0)

PAD, BOS, EOS = 0, 1, 2
SYMBOLS = 10
MAX_LEN = 8
VOCAB = SYMBOLS + 3
SUBST = torch.randperm(SYMBOLS, generator=torch.Generator().manual_seed(5))


class Pairs(Dataset):
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.src, self.tgt = [], []
        for _ in range(n):
            k = int(torch.randint(3, MAX_LEN, (1,), generator=g))
            s = torch.randint(SYMBOLS, (k,), generator=g)
            src = torch.full((MAX_LEN + 1,), PAD)
            tgt = torch.full((MAX_LEN + 2,), PAD)
            src[:k] = s + 3
            src[k] = EOS
            tgt[0] = BOS
            tgt[1:k + 1] = SUBST[s.flip(0)] + 3
            tgt[k + 1] = EOS
            self.src.append(src)
            self.tgt.append(tgt)

    def __len__(self):
        return len(self.src)

    def __getitem__(self, i):
        return self.src[i], self.tgt[i]


class Seq2Seq(nn.Module):
    def __init__(self, dim=48):
        super().__init__()
        self.src_emb, self.tgt_emb = nn.Embedding(VOCAB, dim), nn.Embedding(VOCAB, dim)
        self.pos = nn.Parameter(0.3 * torch.randn(1, MAX_LEN + 2, dim))
        self.core = nn.Transformer(dim, 4, 1, 1, 96, dropout=0.0, batch_first=True)
        self.out = nn.Linear(dim, VOCAB)

    def forward(self, src, tgt):
        pad_mask = src != PAD
        causal = torch.triu(torch.ones(tgt.size(1), tgt.size(1), dtype=torch.bool), diagonal=1)
        h = self.core(  # expect: PROBE10
            self.src_emb(src) + self.pos[:, : src.size(1)],
            self.tgt_emb(tgt) + self.pos[:, : tgt.size(1)],
            tgt_mask=causal,
            src_key_padding_mask=pad_mask,
            memory_key_padding_mask=pad_mask,
        )
        return self.out(h)


@torch.no_grad()
def translate(model, src):
    out = torch.full((len(src), 1), BOS)
    for _ in range(MAX_LEN + 1):
        out = torch.cat([out, model(src, out)[:, -1].argmax(-1, keepdim=True)], dim=1)
    return out


def token_score(model, data):
    src, tgt = torch.stack(data.src), torch.stack(data.tgt)
    model.eval()
    hyp = translate(model, src)[:, 1:]
    ref = tgt[:, 1:]
    keep = ref != PAD
    return (hyp == ref)[keep].float().mean().item()


train, test = Pairs(1300, 0), Pairs(200, 1)
loader = DataLoader(train, batch_size=50, shuffle=True)
model = Seq2Seq()
criterion = nn.CrossEntropyLoss(ignore_index=PAD)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for epoch in range(6):
    model.train()
    total = 0.0
    for src, tgt in loader:
        logits = model(src, tgt[:, :-1])
        loss = criterion(logits.reshape(-1, VOCAB), tgt[:, 1:].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    if epoch % 2:
        print(f"epoch {epoch + 1} loss {total / len(loader):.4f}")
print(f"greedy token accuracy {token_score(model, test):.4f}")
