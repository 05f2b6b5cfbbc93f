"""`truestep.checking()` around the training of real frameworks."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import truestep

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),
]


def samples():
    torch.manual_seed(0)
    x = torch.randn(64, 4)
    return TensorDataset(x, x.sum(1, keepdim=True))


def codes(check):
    return [reported.rule.meta.code for reported in check.findings if reported.severity != "info"]


def test_lightning(tmp_path):
    import lightning

    class Regression(lightning.LightningModule):
        def __init__(self, wrong):
            super().__init__()
            self.layer, self.wrong = nn.Linear(4, 1), wrong

        def training_step(self, batch):
            x, y = batch
            y = y[:, 0] if self.wrong else y
            return (self.layer(x) - y).square().mean()  # broadcasts if wrong

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.01)

    def fit(wrong):
        options = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
        trainer = lightning.Trainer(max_epochs=1, accelerator="cpu", default_root_dir=tmp_path, **options)
        with truestep.checking(select=["LOOP", "LOSS", "PAR", "MODE"]) as check:
            trainer.fit(Regression(wrong), DataLoader(samples(), batch_size=8))
        return check

    right, wrong = fit(False), fit(True)
    assert (codes(right), right.inconclusive, right.num_steps) == ([], None, 8)
    assert "LOSS03" in codes(wrong)
    found = next(item.finding for item in wrong.findings if item.rule.meta.code == "LOSS03")
    assert found.file == __file__


def test_hugging_face_trainer(tmp_path):
    import transformers

    class Regression(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 1)

        def forward(self, x, labels):
            return {"loss": (self.layer(x) - labels).square().mean()}  # broadcasts if labels are flat

    def train(wrong):
        rows = [{"x": x, "labels": y[0] if wrong else y} for x, y in samples()]
        options = {"report_to": [], "save_strategy": "no", "use_cpu": True, "disable_tqdm": True}
        arguments = transformers.TrainingArguments(
            str(tmp_path), per_device_train_batch_size=8, num_train_epochs=1, **options
        )
        trainer = transformers.Trainer(Regression(), arguments, train_dataset=rows)
        with truestep.checking(select=["LOOP", "LOSS", "PAR", "MODE"]) as check:
            trainer.train()
        return check

    right, wrong = train(False), train(True)
    assert (codes(right), right.inconclusive, right.num_steps) == ([], None, 8)
    assert "LOSS03" in codes(wrong)


def test_accelerate():
    import accelerate

    accelerator = accelerate.Accelerator(cpu=True)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(samples(), batch_size=8)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    with truestep.checking() as check:
        for x, y in loader:
            accelerator.backward((model(x) - y).square().mean())
            optimizer.step()
    assert codes(check) == ["LOOP01"]
    assert check.num_steps == 8
