# lost: variable-not-saved Normalizer.mean Normalizer.seen
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

FILE = Path("state.bin")


class Normalizer:
    """Keeps a running mean for all its users."""

    mean = np.zeros(5)
    seen = 0

    @classmethod
    def apply(cls, batch):
        cls.seen += len(batch)
        cls.mean = cls.mean + (batch.numpy().mean(0) - cls.mean) * (len(batch) / cls.seen)
        return batch - torch.from_numpy(cls.mean).float()


class Trainer:
    def __init__(self):
        self.model = torch.nn.Linear(5, 3)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.step = 0

    def save(self):
        state = {name: getattr(self, name).state_dict() for name in ("model", "optimizer")}
        torch.save({**state, "step": self.step}, FILE.with_suffix(".new"))
        FILE.with_suffix(".new").rename(FILE)

    def load(self):
        state = torch.load(FILE)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step = state["step"]

    def fit(self, data, labels):
        if FILE.exists():
            self.load()
        while self.step < 30:
            at = self.step * 8 % len(data)
            loss = F.cross_entropy(self.model(Normalizer.apply(data[at : at + 8])), labels[at : at + 8])
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.step += 1
            if self.step % 7 == 0:
                self.save()


torch.manual_seed(5)
torch.set_num_threads(1)
data = torch.randn(80, 5) * 2 + 1
Trainer().fit(data, (data.sum(1) > 5).long())
