"""Networks that stay as they are on purpose: a random goal, a reference, a teacher, a rare target."""

import copy

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(1)


def hard_update(into, source):
    into.load_state_dict(source.state_dict())


class Learner:
    """Q-learning whose target is synced every thousand steps: this run ends before."""

    def __init__(self):
        self.net = nn.Linear(6, 3)
        self.target_net = copy.deepcopy(self.net).eval()
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=1e-2)
        self.num_updates = 0

    def update(self, x):
        with torch.no_grad():
            goal = 0.9 * self.target_net(x).amax(1) + x[:, 0]
        loss = (self.net(x)[:, 0] - goal).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.num_updates += 1
        if self.num_updates % 1000 == 0:
            hard_update(self.target_net, self.net)


learner = Learner()
policy = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4))
ref_policy = copy.deepcopy(policy).eval()
teacher = copy.deepcopy(policy)
predictor, target = nn.Linear(6, 8), nn.Linear(6, 8)  # the error on a random goal measures novelty
optimizer = torch.optim.Adam([*policy.parameters(), *predictor.parameters()], lr=1e-2)
for step in range(30):
    x = torch.randn(16, 6)
    learner.update(x)
    with torch.no_grad():
        reference, lesson, goal = ref_policy(x), teacher(x), target(x)
    logits = policy(x)
    loss = F.cross_entropy(logits, x[:, :4].argmax(1)) + 0.1 * F.mse_loss(logits, lesson)
    loss = loss + 0.1 * F.kl_div(logits.log_softmax(1), reference.softmax(1), reduction="batchmean")
    loss = loss + F.mse_loss(predictor(x), goal)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
