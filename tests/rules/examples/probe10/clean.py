import torch
from torch import nn

torch.manual_seed(0)
PAD = 0


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 16)
        self.out = nn.Linear(16, 3)

    def forward(self, tokens, keep):
        x = self.embed(tokens)
        x = nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=keep[:, None])
        return self.out((x * keep[:, :, None]).sum(1) / keep.sum(1, keepdim=True))


model = Classifier()
optimizer = torch.optim.Adam(model.parameters())
for step in range(4):
    tokens, labels = torch.randint(1, 20, (16, 10)), torch.randint(0, 3, (16,))
    for row in range(16):
        tokens[row, 5 + row % 5 :] = PAD
    loss = nn.functional.cross_entropy(model(tokens, tokens != PAD), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
