import torch
from torch import nn

torch.manual_seed(0)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(12, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1)
        self.out = nn.Linear(16, 12)

    def forward(self, tokens):
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        return self.out(self.encoder(self.embed(tokens), mask=mask))


model = Model()
tagger = nn.Sequential(nn.Embedding(12, 16), nn.GRU(16, 8, bidirectional=True, batch_first=True))
optimizer = torch.optim.Adam([*model.parameters(), *tagger.parameters()])
for step in range(4):
    text = torch.randint(0, 12, (8, 11))
    logits = model(text[:, :-1])
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten())
    states, _ = tagger(text)
    loss = loss + nn.functional.cross_entropy(states.flatten(0, 1), (text % 2).flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
