"""Linear regression and a tiny network, updated by hand."""
import torch

LR = 0.05



def make_data(n=200):
    x = torch.randn(n, 3)  # expect: REPRO01
    w = torch.tensor([1.5, -2.0, 0.5])
    return x, x @ w + 0.3


def init(shapes):
    return [torch.randn(*shape).mul_(0.3).requires_grad_() for shape in shapes]  # expect: REPRO01


def forward(params, x):
    w1, b1, w2, b2 = params
    return (torch.tanh(x @ w1 + b1) @ w2 + b2).squeeze(1)


def sgd(params, lr):
    with torch.no_grad():
        for p in params:
            p -= lr * p.grad
            p.grad = None


def main():
    x, y = make_data()
    params = init([(3, 16), (16,), (16, 1), (1,)])
    for epoch in range(20):
        total = 0.0
        for rows in torch.randperm(len(x)).split(20):
            loss = ((forward(params, x[rows]) - y[rows]) ** 2).mean()
            loss.backward()
            sgd(params, LR)
            total += loss.item()
        if epoch % 5 == 4:
            print(f"epoch {epoch + 1} loss {total / 10:.4f}")


if __name__ == "__main__":
    main()
