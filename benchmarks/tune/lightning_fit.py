"""Train an autoencoder of digits with Lightning's Trainer."""

import argparse

import lightning as L
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Autoencoder(L.LightningModule):
    """Down to eight numbers and up again, by convolutions."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, stride=2, padding=1), nn.ReLU(),
            nn.Flatten(), nn.Linear(64 * 16, 8),
        )  # fmt: skip
        self.decoder = nn.Sequential(
            nn.Linear(8, 64 * 16), nn.Unflatten(1, (64, 4, 4)), nn.ReLU(),
            nn.ConvTranspose2d(64, 32, 4, stride=2, padding=1), nn.ReLU(), nn.Conv2d(32, 1, 3, padding=1),
        )  # fmt: skip

    def forward(self, images):
        return self.decoder(self.encoder(images))

    def training_step(self, batch, batch_idx):  # noqa: ARG002 - Lightning calls it like this
        (images,) = batch
        loss = F.mse_loss(self(images), images)
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss

    def on_train_epoch_end(self):
        if self.current_epoch % 5 == 0:
            loss = self.trainer.callback_metrics["train_loss"]
            print(f"epoch {self.current_epoch}: loss {loss:.4f}", flush=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=1000)
    args = parser.parse_args()

    L.seed_everything(7)
    rows, _ = load_digits(return_X_y=True)
    images = torch.tensor(rows / 16, dtype=torch.float32).view(-1, 1, 8, 8)
    loader = DataLoader(TensorDataset(images), batch_size=64, shuffle=True)
    trainer = L.Trainer(
        max_epochs=args.epochs,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(Autoencoder(), loader)


if __name__ == "__main__":
    main()
