"""Iris-like flowers with Lightning."""
import lightning as L
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset, random_split


class Flowers(L.LightningModule):
    def __init__(self, features=4, classes=3, width=32, lr=1e-2):
        super().__init__()
        self.save_hyperparameters()
        self.body = nn.Sequential(nn.Linear(features, width), nn.ReLU(), nn.Dropout(0.1), nn.Linear(width, width), nn.ReLU())
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        logits = self.head(self.body(x))
        return logits

    def training_step(self, batch, index):
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, index):
        x, y = batch
        out = self(x)
        self.log("val_loss", F.cross_entropy(out, y))
        self.log("val_acc", (out.argmax(-1) == y).float().mean())

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.hparams.lr)


def make_data(n=320):
    generator = torch.Generator().manual_seed(3)
    centres = torch.randn(3, 4, generator=generator) * 2
    y = torch.randint(0, 3, (n,), generator=generator)
    x = centres[y] + torch.randn(n, 4, generator=generator)
    return TensorDataset((x - x.mean(0)) / x.std(0), y)


if __name__ == "__main__":
    L.seed_everything(11)
    train, val = random_split(make_data(), [256, 64])
    trainer = L.Trainer(max_epochs=3, accelerator="cpu", logger=False, enable_checkpointing=False,
                        enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(Flowers(), DataLoader(train, 32, shuffle=True), DataLoader(val, 32))
    print(trainer.callback_metrics)
