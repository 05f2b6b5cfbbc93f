"""Next-item prediction from a stream of click logs."""
import json
import tempfile
from pathlib import Path

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class ClickStream(IterableDataset):
    def __init__(self, path, length=8):
        super().__init__()
        self.path = path
        self.length = length

    def parse(self, line):
        record = json.loads(line)
        items = torch.tensor(record["items"])
        return items[:-1], items[1:]

    def __iter__(self):
        info = get_worker_info()
        with open(self.path) as lines:
            for number, line in enumerate(lines):
                if info is not None and number % info.num_workers != info.id:
                    continue
                yield self.parse(line)


class SessionGRU(nn.Module):
    def __init__(self, items, width=32):
        super().__init__()
        self.embed = nn.Embedding(items, width)
        self.gru = nn.GRU(width, width, batch_first=True)
        self.out = nn.Linear(width, items)

    def forward(self, items):
        hidden, _ = self.gru(self.embed(items))
        return self.out(hidden)


class Trainer:
    def __init__(self, model, loader, lr=1e-2):
        self.model = model
        self.loader = loader
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.0)
        self.criterion = nn.CrossEntropyLoss()

    def step(self, inputs, targets):
        logits = self.model(inputs)
        loss = self.criterion(logits.flatten(0, 1), targets.flatten())
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def fit(self, epochs):
        for epoch in range(epochs):
            self.model.train()
            losses = [self.step(x, y) for x, y in self.loader]
            print(f"epoch {epoch} steps {len(losses)} loss {sum(losses) / len(losses):.3f}")


def write_logs(path, sessions=400, items=20):
    with open(path, "w") as out:
        for _ in range(sessions):
            start = int(torch.randint(items, ()))
            stride = int(torch.randint(1, 4, ()))
            out.write(json.dumps({"items": [(start + stride * k) % items for k in range(9)]}) + "\n")


if __name__ == "__main__":
    torch.manual_seed(11)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "clicks.jsonl"
        write_logs(path)
        loader = DataLoader(ClickStream(path), batch_size=20, num_workers=2)
        Trainer(SessionGRU(20), loader).fit(2)
