"""Ways to train that a profile must see through: closures, several optimizers, accumulation, frameworks."""

import sys
import time
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
X, Y = torch.randn(256, 64), torch.randint(0, 10, (256,))
HEAVY = 300


def make_model() -> nn.Module:
    return nn.Sequential(nn.Linear(64, HEAVY), nn.ReLU(), nn.Linear(HEAVY, HEAVY), nn.Linear(HEAVY, 10))


def loader() -> Any:
    return DataLoader(TensorDataset(X, Y), batch_size=64, shuffle=True)


def closure() -> None:
    """LBFGS: forward and backward passes run inside of the optimizer's step."""
    model = make_model()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.01, max_iter=4)

    def compute() -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(X), Y)
        loss.backward()
        time.sleep(0.002)  # neither the optimizer's nor a pass
        return loss

    for _ in range(400):
        optimizer.step(compute)


def several() -> None:
    """Two optimizers take turns, with two backward passes each; evaluation every eight steps."""
    models = make_model(), make_model()
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.01) for model in models]
    criterion = nn.CrossEntropyLoss()
    data = DataLoader(TensorDataset(X, Y), batch_size=32)
    for _ in range(60):
        for x, y in data:
            for model, optimizer in zip(models, optimizers, strict=True):
                model.train()
                optimizer.zero_grad()
                for part in (slice(0, 16), slice(16, 32)):
                    criterion(model(x[part]), y[part]).backward()
                optimizer.step()
        evaluate(*models)


def evaluate(*models: nn.Module) -> None:
    with torch.no_grad():
        for model in models:
            model.eval()
            for _ in range(10):
                model(X)
    time.sleep(0.02)


def short() -> None:
    """Twelve steps in all."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batches = loader()
    for _ in range(3):
        for x, y in batches:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()


def lightning() -> None:
    import lightning as L

    class Module(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = make_model()

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            x, y = batch
            time.sleep(0.002)
            return F.cross_entropy(self.net(x), y)

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters())

    trainer = L.Trainer(max_epochs=100, accelerator="cpu", logger=False, enable_checkpointing=False)
    trainer.fit(Module(), loader())


def accelerate() -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = make_model()
    model, optimizer, batches = accelerator.prepare(model, torch.optim.AdamW(model.parameters()), loader())
    for _ in range(200):
        for x, y in batches:
            with accelerator.accumulate(model):
                accelerator.backward(F.cross_entropy(model(x), y))
                optimizer.step()
                optimizer.zero_grad()


def ours() -> None:
    """Our own loop and loader, whose samples take a while."""
    import truestep as ts

    class Slow(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return 4096

        def __getitem__(self, index: int) -> Any:
            time.sleep(0.0005)
            return X[index % 256], Y[index % 256]

    run = ts.Run("run", seed=1)
    model = run.place(make_model())
    optimizer = torch.optim.AdamW(model.parameters())
    run.track(model=model, optimizer=optimizer)
    for step in run.steps(ts.Loader(Slow(), batch_size=16), epochs=1):
        for x, y in step:
            step.backward(F.cross_entropy(model(x), y))
        step.update(optimizer)


def none() -> None:
    make_model()(X)


def failing() -> None:
    raise RuntimeError("no such data")


if __name__ == "__main__":
    globals()[sys.argv[1]]()
