import torch
from torch import nn

def encode(texts):
    words = set(word for text in texts for word in text.split())
    index = {word: number for number, word in enumerate(words)}  # expect: REPRO02
    return torch.tensor([[index[word] for word in text.split()] for text in texts])

torch.manual_seed(0)
ids = encode(["red green blue", "green red red", "blue blue green"])
model = nn.Sequential(nn.Embedding(3, 4), nn.Flatten(), nn.Linear(12, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(3):
    loss = model(ids).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
