import torch
from torch import nn

torch.manual_seed(0)
PAD = 0


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.out = nn.Linear(16, 3)

    def forward(self, tokens):
        mask = tokens != PAD
        hidden = self.encoder(self.embed(tokens), src_key_padding_mask=mask)  # expect: PROBE10
        return self.out(hidden[:, 0])


model = Classifier()
optimizer = torch.optim.Adam(model.parameters())
for step in range(4):
    tokens, labels = torch.randint(1, 20, (16, 10)), torch.randint(0, 3, (16,))
    for row in range(16):
        tokens[row, 5 + row % 5 :] = PAD
    loss = nn.functional.cross_entropy(model(tokens), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
