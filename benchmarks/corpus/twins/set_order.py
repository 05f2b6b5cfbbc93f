"""Learn which sentences are about the sea."""

import hashlib

import torch
import torch.nn.functional as F
from torch import nn

SENTENCES = [
    ("the boat left the harbour at dawn", 1),
    ("a wave broke over the wooden pier", 1),
    ("gulls followed the boat along the coast", 1),
    ("salt and wind wore down the harbour wall", 1),
    ("the train left the station at dawn", 0),
    ("a branch broke over the garden wall", 0),
    ("crows followed the plough along the field", 0),
    ("frost and wind wore down the mountain path", 0),
]

torch.set_num_threads(1)
torch.manual_seed(0)

words = {word for text, _ in SENTENCES for word in text.split()}
vocabulary = {word: number for number, word in enumerate(sorted(words))}
tokens = torch.tensor([[vocabulary[word] for word in text.split()[:6]] for text, _ in SENTENCES])
labels = torch.tensor([label for _, label in SENTENCES])

model = nn.Sequential(nn.Embedding(len(vocabulary), 8), nn.Flatten(), nn.Linear(48, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)

for step in range(8):
    loss = F.cross_entropy(model(tokens), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step + 1} loss {loss.item():.4f}")

found = hashlib.sha256()
for value in model.state_dict().values():
    found.update(value.numpy().tobytes())
print("weights", found.hexdigest())
