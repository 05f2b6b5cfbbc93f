# ruff: noqa: E402
"""The same small training with Lightning, Accelerate, Hugging Face's Trainer, or truestep.Run, as told."""

import sys
import warnings

warnings.filterwarnings("ignore")
import torch
import torch.nn.functional as F
from telling import Probe, tell
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(7)
data = TensorDataset(torch.randn(40, 4), torch.randint(0, 2, (40,)))


def part():
    return nn.Sequential(nn.Linear(16, 16), nn.ReLU())


def make():
    stack = nn.Sequential(part(), part())
    return nn.Sequential(nn.Linear(4, 16), stack, nn.Dropout(0.1), nn.Linear(16, 2))


def fit_lightning(folder):
    import lightning as L

    class Classifier(L.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = make()

        def training_step(self, batch, batch_index):
            return F.cross_entropy(self.net(batch[0]), batch[1])

        def validation_step(self, batch, batch_index):
            self.log("loss", F.cross_entropy(self.net(batch[0]), batch[1]))

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=0.01)

    loader, valid_loader = DataLoader(data, batch_size=8, shuffle=True), DataLoader(data, batch_size=8)
    model = Classifier()
    probe = Probe(model.net[1][0][0])
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}
    trainer = L.Trainer(max_epochs=2, accelerator="cpu", default_root_dir=folder, **quiet)
    trainer.fit(model, loader, valid_loader)
    tell([model.net], [trainer.optimizers[0]], [loader, valid_loader], [probe])


def fit_accelerate(folder):
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, project_dir=folder)
    model = make()
    probe = Probe(model[1][0][0])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    loader, valid_loader = DataLoader(data, batch_size=8, shuffle=True), DataLoader(data, batch_size=8)
    model, optimizer, loader, valid_loader = accelerator.prepare(model, optimizer, loader, valid_loader)
    for _ in range(2):
        for x, y in loader:
            accelerator.backward(F.cross_entropy(model(x), y))
            optimizer.step()
            optimizer.zero_grad()
        model.eval()
        with torch.no_grad():
            for x, _ in valid_loader:
                model(x)
        model.train()
    tell([accelerator.unwrap_model(model)], [optimizer], [loader, valid_loader], [probe])


def fit_trainer(folder):
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    class Sentences(torch.utils.data.Dataset):
        def __len__(self):
            return 24

        def __getitem__(self, index):
            tokens = torch.arange(8) * (index + 3) % 50
            return {"input_ids": tokens, "labels": tokens}

    sizes = {"vocab_size": 50, "n_positions": 16, "n_embd": 16, "n_layer": 2, "n_head": 2}
    model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))
    probe = Probe(model.transformer.h[0].mlp.c_fc)
    quiet = {"report_to": "none", "save_strategy": "no", "disable_tqdm": True, "eval_strategy": "epoch"}
    arguments = TrainingArguments(
        output_dir=folder,
        num_train_epochs=1,
        per_device_train_batch_size=4,
        use_cpu=True,
        optim="adamw_torch",
        **quiet,
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=Sentences(), eval_dataset=Sentences())
    trainer.train()
    # A model of theirs that recomputes has a hook of theirs that cannot be pickled.
    tell([model], [trainer.optimizer.optimizer], [trainer.get_train_dataloader()], [probe], is_pickled=False)


def fit_run(folder):
    import truestep as ts

    run = ts.Run(folder, seed=7)
    model = run.place(make())
    probe = Probe(model[1][0][0])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    loader = ts.Loader(data, batch_size=8)
    run.track(model=model, optimizer=optimizer)
    for step in run.steps(loader, epochs=2):
        for x, y in step:
            step.backward(F.cross_entropy(model(x), y))
        step.update(optimizer)
    tell([model], [optimizer], probes=[probe], loader=loader.workers)


if __name__ == "__main__":
    {"lightning": fit_lightning, "accelerate": fit_accelerate, "trainer": fit_trainer, "run": fit_run}[
        sys.argv[1]
    ](sys.argv[2])
