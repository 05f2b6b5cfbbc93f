import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F


def make_data(n, seed):
    g = torch.Generator().manual_seed(seed)
    centers = torch.randn(9, 24, generator=torch.Generator().manual_seed(99))
    y = torch.randint(9, (n,), generator=g)
    return centers[y] + 1.1 * torch.randn(n, 24, generator=g), y


class Teacher(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(24, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Dropout(0.5),
            nn.Linear(128, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Dropout(0.5),
            nn.Linear(128, 9),
        )

    def forward(self, x):
        return self.net(x)


class Student(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(24, 20), nn.ReLU(), nn.Linear(20, 9))

    def forward(self, x):
        return self.net(x)


def evaluate(model, x, y):
    was_training = model.training
    model.eval()
    with torch.no_grad():
        logits = model(x)
    model.train(was_training)
    return (logits.argmax(1) == y).float().mean().item(), F.cross_entropy(logits, y).item()


def fit_teacher(teacher, x, y, epochs):
    opt = torch.optim.Adam(teacher.parameters(), lr=3e-3)
    teacher.train()
    for epoch in range(epochs):
        for idx in torch.randperm(len(x)).split(64):
            loss = F.cross_entropy(teacher(x[idx]), y[idx])
            opt.zero_grad()
            loss.backward()
            opt.step()
        print(f"teacher epoch {epoch} loss {loss.item():.4f}")


def fit_student(student, teacher, x, epochs, temperature=2.0):
    opt = torch.optim.Adam(student.parameters(), lr=5e-3)
    student.train()
    for epoch in range(epochs):
        total = 0.0
        for idx in torch.randperm(len(x)).split(32):
            batch = x[idx] * (0.3 + 1.4 * torch.rand(len(idx), 1))
            with torch.no_grad():
                soft = F.softmax(teacher(batch) / temperature, dim=1)  # expect: MODE08
            loss = F.kl_div(F.log_softmax(student(batch) / temperature, dim=1), soft, reduction="batchmean")
            opt.zero_grad()
            loss.backward()
            opt.step()
            total += loss.item() * len(idx) / len(x)
        print(f"student epoch {epoch} loss {total:.4f}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--teacher-epochs", type=int, default=10)
    parser.add_argument("--student-epochs", type=int, default=25)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    x_train, y_train = make_data(1500, 0)
    x_test, y_test = make_data(1500, 1)
    teacher, student = Teacher(), Student()
    fit_teacher(teacher, x_train, y_train, args.teacher_epochs)
    print("teacher before distillation: accuracy %.4f nll %.4f" % evaluate(teacher, x_test, y_test))
    fit_student(student, teacher, x_train[:300], args.student_epochs)
    with torch.no_grad():
        a = F.softmax(student.eval()(x_test), dim=1)
        b = F.softmax(teacher.eval()(x_test), dim=1)
    print("teacher after distillation: accuracy %.4f nll %.4f" % evaluate(teacher, x_test, y_test))
    print("student: accuracy %.4f nll %.4f" % evaluate(student, x_test, y_test))
    print(f"mean difference of the probabilities {(a - b).abs().sum(1).mean():.4f}")


if __name__ == "__main__":
    main()
