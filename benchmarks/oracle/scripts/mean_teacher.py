"""A teacher follows the student by `.data`, as many public scripts write it; loop in a function."""

import copy

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.center = torch.zeros(4)

    def forward(self, x):
        return self.norm(self.body(x)) - self.center


def follow(teacher, student):
    for mine, other in zip(teacher.parameters(), student.parameters(), strict=True):
        mine.data.mul_(0.9).add_(other.data, alpha=0.1)


def train(student, teacher, optimizer):
    for step in range(4):
        x = torch.randn(6, 4)
        with torch.no_grad():
            wanted = teacher(x)
        optimizer.zero_grad()
        (student(x) - wanted).square().mean().backward()
        optimizer.step()
        follow(teacher, student)
        # plant 0-2: teacher.body.weight | teacher.norm.weight | teacher.center
        # plant 0-2 large: teacher.norm.running_var
        # plant 0-2: student.body.bias | student.center
        # plant 0-2 large: student.norm.running_mean


torch.manual_seed(0)
student = Net()
teacher = copy.deepcopy(student).requires_grad_(False)
train(student, teacher, torch.optim.AdamW(student.parameters(), lr=0.01))
