"""A trainer with callbacks and hooks, each with state, as frameworks have them."""

import torch
from torch import nn


class Callback:
    def after_step(self, trainer):
        pass


class Norms(Callback):
    def __init__(self):
        self.norms = []

    def after_step(self, trainer):
        self.norms.append(torch.stack([item.detach().norm() for item in trainer.model.parameters()]))


class Snapshots(Callback):
    def __init__(self):
        self.states, self.best = {}, None

    def after_step(self, trainer):
        self.states[trainer.num] = {name: item.clone() for name, item in trainer.model.state_dict().items()}
        self.best = self.states[trainer.num]


class Trainer:
    def __init__(self, model, callbacks):
        self.model, self.callbacks, self.num = model, callbacks, 0
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        self.activations = {}
        model[0].register_forward_hook(self.note)

    def note(self, module, given, output):
        self.activations.setdefault("first", []).append(output.detach().mean(0))

    def make_step(self, batch):
        self.optimizer.zero_grad()
        loss = self.model(batch).square().mean()
        loss.backward()
        self.optimizer.step()
        self.num += 1
        for callback in self.callbacks:
            callback.after_step(self)

    def fit(self, data):
        for step, batch in enumerate(data):
            self.make_step(batch)
            # plant 0-2: self.callbacks[0].norms[0] | self.callbacks[1].best["0.weight"] | self.activations["first"][0]
            # plant 0-2: self.callbacks[1].states[1]["2.bias"] | self.model[2].weight | data[0]


def main():
    torch.manual_seed(0)
    trainer = Trainer(nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2)), [Norms(), Snapshots()])
    trainer.fit(torch.randn(4, 3, 4))


if __name__ == "__main__":
    main()
