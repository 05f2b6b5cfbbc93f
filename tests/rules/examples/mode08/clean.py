import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
student = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 4))
teacher = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 4)).requires_grad_(False)
teacher.load_state_dict(student.state_dict())
optimizer = torch.optim.Adam(student.parameters())
for step in range(6):  # a mean teacher, with noise of its own
    x = torch.randn(32, 8)
    with torch.no_grad():
        soft = teacher(x).softmax(1)
    loss = F.cross_entropy(student(x), x[:, :4].argmax(1)) + F.mse_loss(student(x).softmax(1), soft)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for average, weight in zip(teacher.parameters(), student.parameters()):
            average.lerp_(weight, 0.1)
