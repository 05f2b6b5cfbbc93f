"""A recurrent network whose hidden state goes from one step to the next, in a trainer."""

import torch
from torch import nn


class Trainer:
    def __init__(self):
        self.cell = nn.GRU(3, 5, batch_first=True)
        self.head = nn.Linear(5, 2)
        weights = [*self.cell.parameters(), *self.head.parameters()]
        self.optimizer = torch.optim.Adagrad(weights, lr=0.05)
        self.hidden = torch.zeros(1, 4, 5)
        self.seen = {"outputs": [torch.zeros(4, 2)]}

    def make_step(self, x):
        output, hidden = self.cell(x, self.hidden)
        scores = self.head(output[:, -1])
        self.optimizer.zero_grad()
        scores.square().mean().backward()
        self.optimizer.step()
        self.hidden = hidden.detach()
        self.seen["outputs"][0] = scores.detach()

    def fit(self):
        for step in range(4):
            self.make_step(torch.randn(4, 6, 3))
            # plant 0-2: self.hidden | self.seen["outputs"][0] | self.cell.weight_hh_l0 | self.head.bias
            # plant 0-2 large: self.optimizer.state[self.head.weight]["sum"]


torch.manual_seed(0)
trainer = Trainer()
trainer.fit()
# plant: trainer.hidden | trainer.cell.bias_ih_l0 | trainer.seen["outputs"][0]
