# Linear probe on a frozen recurrent encoder: which of four generators wrote this sequence?
import torch
from torch import nn

torch.manual_seed(33)
generator = torch.Generator().manual_seed(33)

SYMBOLS, LENGTH, STYLES = 8, 20, 4
transitions = torch.rand(STYLES, SYMBOLS, SYMBOLS, generator=generator) ** 4 + 0.01
transitions = transitions / transitions.sum(dim=2, keepdim=True)


def write(n):
    style = torch.randint(STYLES, (n,), generator=generator)
    symbol = torch.randint(SYMBOLS, (n,), generator=generator)
    text = [symbol]
    for _ in range(LENGTH - 1):
        symbol = torch.multinomial(transitions[style, symbol], 1, generator=generator).squeeze(1)
        text.append(symbol)
    return torch.stack(text, dim=1), style


class Encoder(nn.Module):
    def __init__(self, width=40):
        super().__init__()
        self.embed = nn.Embedding(SYMBOLS, 16)
        self.gru = nn.GRU(16, width, batch_first=True)

    def forward(self, text):
        return self.gru(self.embed(text))[0]


texts, styles = write(960)
test_texts, test_styles = write(240)

# stage one: the encoder learns to predict the next symbol
encoder, predict = Encoder(), nn.Linear(40, SYMBOLS)
optimizer = torch.optim.Adam([*encoder.parameters(), *predict.parameters()], lr=5e-3)
for epoch in range(3):
    encoder.train()
    for rows in torch.randperm(len(texts)).split(64):
        batch = texts[rows]
        logits = predict(encoder(batch[:, :-1]))
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"language model {epoch}: loss {loss.item():.3f}")

# stage two: the encoder is fixed, a linear probe reads its mean state
for parameter in encoder.parameters():
    parameter.requires_grad = False
probe = nn.Sequential(nn.LayerNorm(40), nn.Linear(40, STYLES))
model = nn.ModuleDict({"encoder": encoder, "probe": probe})
trainable = [p for p in model.parameters() if p.requires_grad]
print(f"probe: {sum(p.numel() for p in trainable)} trainable weights")
optimizer = torch.optim.Adam(trainable, lr=1e-2)
for epoch in range(4):
    encoder.train()
    probe.train()
    total = 0.0
    for rows in torch.randperm(len(texts)).split(64):
        logits = probe(encoder(texts[rows]).mean(dim=1))
        loss = nn.functional.cross_entropy(logits, styles[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item() * len(rows)
    encoder.eval()
    probe.eval()
    with torch.no_grad():
        guess = probe(encoder(test_texts).mean(dim=1)).argmax(dim=1)
    accuracy = (guess == test_styles).float().mean().item()
    print(f"probe {epoch}: loss {total / len(texts):.3f}  test accuracy {accuracy:.3f}")
