import torch
from torch import nn

torch.manual_seed(0)


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 16)
        self.register_buffer("codes", torch.randn(64, 1, 16))
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1)
        self.out = nn.Linear(16, 3)

    def forward(self, tokens):
        x = self.embed(tokens)
        x = x + self.codes[: x.size(0)]  # expect: PROBE09
        return self.out(self.encoder(x).mean(1))


model = Classifier()
optimizer = torch.optim.Adam(model.parameters())
for step in range(4):
    tokens, labels = torch.randint(0, 20, (16, 9)), torch.randint(0, 3, (16,))
    loss = nn.functional.cross_entropy(model(tokens), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
