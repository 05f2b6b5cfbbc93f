"""The callbacks inside the real frameworks: findings in their log, the user's line, no bit changed."""

import logging
import warnings

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import truestep
from tests.report.test_export import events_of, scalars
from truestep.report.answers import CURVE

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
RULES = {"select": ["LOOP", "LOSS", "PAR", "MODE"]}


def samples():
    torch.manual_seed(0)
    x = torch.randn(64, 4)
    return TensorDataset(x, x.sum(1, keepdim=True))


class Network(nn.Module):
    """Its loss broadcasts if targets are flat."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.layer = nn.Linear(4, 1)

    def forward(self, x, labels):
        return {"loss": (self.layer(x) - labels).square().mean()}


def codes(check):
    return [reported.rule.meta.code for reported in check.findings if reported.severity != "info"]


def texts_of(caplog, name):
    return [record.getMessage() for record in caplog.records if record.name == name]


@pytest.fixture
def caplog(caplog, monkeypatch):
    caplog.set_level(logging.INFO)
    for name in ("lightning", "lightning.pytorch", "pytorch_lightning", "transformers"):
        monkeypatch.setattr(logging.getLogger(name), "propagate", True)
    return caplog


def fit(lightning, callbacks, folder, *, is_wrong=True, fails=False, logger=False):
    class Regression(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.network = Network()

        def training_step(self, batch, index):
            if fails and index == 6:
                raise RuntimeError("halfway")
            x, y = batch
            return self.network(x, y[:, 0] if is_wrong else y)["loss"]

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.01)

    options = {"logger": logger, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = lightning.Trainer(
        max_epochs=1, accelerator="cpu", default_root_dir=folder, callbacks=callbacks, **options
    )
    model = Regression()
    trainer.fit(model, DataLoader(samples(), batch_size=8))
    return truestep.digest(model.state_dict().items())


def test_lightning(tmp_path, caplog):
    import lightning

    from truestep.frameworks.lightning import TruestepCallback

    callback = TruestepCallback(**RULES)
    assert callback.check is None
    digest = fit(lightning, [callback], tmp_path)
    assert digest == fit(lightning, [], tmp_path), "observing changes no bit"
    assert codes(callback.check) == ["LOSS03"] and callback.check.num_steps == 8
    assert callback.check.findings[0].finding.file == __file__
    found, summary = texts_of(caplog, "lightning.pytorch.truestep")
    assert "LOSS03" in found and summary == "truestep: 1 error in 8 steps"
    fit(lightning, [callback], tmp_path, is_wrong=False)
    assert (codes(callback.check), callback.check.inconclusive) == ([], None)
    with pytest.raises(RuntimeError, match="halfway"):
        fit(lightning, [callback], tmp_path, fails=True)
    assert codes(callback.check) == ["LOSS03"]
    assert callback.check.inconclusive == "the block ended with RuntimeError: halfway"


def test_findings_are_beside_the_curves_of_lightning(tmp_path):
    import lightning
    from lightning.pytorch.loggers import TensorBoardLogger

    from truestep.frameworks.lightning import TruestepCallback

    logger = TensorBoardLogger(tmp_path, name="", version="")
    fit(lightning, [TruestepCallback(**RULES)], tmp_path, logger=logger)
    logger.finalize("success")
    assert scalars(tmp_path, CURVE) == [(5, 1.0)], "when it was found"


def test_findings_are_beside_the_curves_of_hugging_face(tmp_path):
    import transformers

    import truestep.frameworks.transformers  # noqa: F401 - it makes the name known

    arguments = transformers.TrainingArguments(
        str(tmp_path),
        per_device_train_batch_size=8,
        num_train_epochs=1,
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
        logging_steps=2,
        report_to=["truestep", "tensorboard"],
    )
    rows = [{"x": x, "labels": y[0]} for x, y in samples()]
    transformers.Trainer(Network(), arguments, train_dataset=rows).train()
    (file,) = tmp_path.rglob("events.out.tfevents.*")
    names = [name for name in events_of(file.parent).Tags()["scalars"] if CURVE in name]
    assert len(names) == 1 and scalars(file.parent, names[0])[-1][1] >= 1.0


def test_lightning_by_its_other_name(tmp_path):
    import pytorch_lightning

    from truestep.frameworks.lightning import TruestepCallback

    callback = TruestepCallback(**RULES)
    fit(pytorch_lightning, [callback], tmp_path)
    assert codes(callback.check) == ["LOSS03"]


def test_hugging_face_trainer(tmp_path, caplog):
    import transformers

    from truestep.frameworks.transformers import TruestepCallback

    def train(**options):
        rows = [{"x": x, "labels": y[0]} for x, y in samples()]
        arguments = transformers.TrainingArguments(
            str(tmp_path),
            per_device_train_batch_size=8,
            num_train_epochs=1,
            save_strategy="no",
            use_cpu=True,
            disable_tqdm=True,
            report_to=options.pop("report_to", []),
        )
        trainer = transformers.Trainer(Network(), arguments, train_dataset=rows, **options)
        trainer.train()
        return truestep.digest(trainer.model.state_dict().items()), trainer

    digest, trainer = train(report_to="truestep")
    (callback,) = (each for each in trainer.callback_handler.callbacks if isinstance(each, TruestepCallback))
    assert "LOSS03" in codes(callback.check) and callback.check.num_steps == 8
    assert any("LOSS03" in text for text in texts_of(caplog, "transformers.truestep"))
    assert digest == train()[0], "observing changes no bit"
    callback = TruestepCallback(steps=2, **RULES)
    train(callbacks=[callback])
    assert callback.check.num_steps == 2


@pytest.mark.parametrize("by_name", [True, False])
def test_accelerate(caplog, by_name):
    import accelerate

    from truestep.frameworks.accelerate import TruestepTracker

    accelerator = accelerate.Accelerator(cpu=True, log_with="truestep" if by_name else TruestepTracker())
    model = Network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(samples(), batch_size=8)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    accelerator.init_trackers("test")
    for step, (x, y) in enumerate(loader, start=1):
        loss = model(x, y)["loss"]
        accelerator.backward(loss)
        optimizer.step()
        accelerator.log({"loss": loss.item()}, step=step)
        if step == 5:
            assert "LOOP01" in texts_of(caplog, "accelerate.truestep")[0], "while it runs"
    tracker = accelerator.get_tracker("truestep")
    accelerator.end_training()
    assert codes(tracker.check) == ["LOOP01"] and tracker.check.num_steps == 8
    assert texts_of(caplog, "accelerate.truestep")[-1] == "truestep: 1 error in 8 steps"


def test_ignite(caplog):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        engines = pytest.importorskip("ignite.engine", reason="pytorch-ignite is not installed")
    from truestep.frameworks.ignite import TruestepHandler

    model = Network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    errors = []

    def update(engine, batch):
        if errors:
            raise errors[0]
        model(*batch)["loss"].backward()
        optimizer.step()

    trainer, handler = engines.Engine(update), TruestepHandler()
    handler.attach(trainer)
    assert handler.check is None
    trainer.run(DataLoader(samples(), batch_size=8), max_epochs=1)
    assert codes(handler.check) == ["LOOP01"] and handler.check.num_steps == 8
    assert "LOOP01" in caplog.text and "truestep: 1 error in 8 steps" in caplog.text
    errors.append(RuntimeError("halfway"))
    with pytest.raises(RuntimeError, match="halfway"):
        trainer.run(DataLoader(samples(), batch_size=8), max_epochs=1)
    assert "halfway" in handler.check.inconclusive
    with truestep.checking():  # torch is free again
        pass
    handled, trainer = [], engines.Engine(update)
    handler.attach(trainer)
    trainer.add_event_handler(engines.Events.EXCEPTION_RAISED, lambda _, error: handled.append(error))
    trainer.run(DataLoader(samples(), batch_size=8), max_epochs=1)
    assert handled == errors, "a user's own handler still decides"
