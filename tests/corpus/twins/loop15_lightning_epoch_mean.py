"""Losses are gathered for the end of the epoch."""
import logging

import pytorch_lightning as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)


class Regression(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(5, 32), nn.Tanh(), nn.Linear(32, 1))
        self.outputs = []

    def training_step(self, batch, index):
        x, y = batch
        loss = nn.functional.mse_loss(self.body(x), y)
        self.outputs.append(loss.detach())
        return loss

    def on_train_epoch_end(self):
        print("epoch", self.current_epoch, torch.stack(self.outputs).mean().item())
        self.outputs.clear()

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.02, momentum=0.9)
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.7)}


class Data(pl.LightningDataModule):
    def setup(self, stage):
        x = torch.randn(400, 5)
        self.train = TensorDataset(x, (x[:, :1] * 2).sin())

    def train_dataloader(self):
        return DataLoader(self.train, batch_size=20, shuffle=True)


pl.seed_everything(3, verbose=False)
trainer = pl.Trainer(max_epochs=3, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
trainer.fit(Regression(), Data())
