"""Lightning: a denoising autoencoder with validation and a scheduler per epoch; no logger, no checkpoints."""

import logging
import warnings

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore", message=".*does not have many workers.*")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Denoiser(lightning.LightningModule):
    def __init__(self, lr=5e-3):
        super().__init__()
        self.lr = lr
        self.net = nn.Sequential(
            nn.Linear(24, 64), nn.GELU(), nn.Dropout(0.05), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 24)
        )
        self.criterion = nn.MSELoss()

    def forward(self, noisy):
        return self.net(noisy)

    def training_step(self, batch, batch_idx):
        noisy, clean = batch
        loss = self.criterion(self(noisy), clean)
        self.log("train_loss", loss, on_step=False, on_epoch=True, batch_size=len(noisy))
        return loss

    def validation_step(self, batch, batch_idx):
        noisy, clean = batch
        self.log("val_loss", self.criterion(self(noisy), clean), batch_size=len(noisy))

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=self.lr)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.8)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "epoch"}}


def waves(count, seed):
    generator = torch.Generator().manual_seed(seed)
    t = torch.linspace(0, 6.28, 24)
    frequency = torch.randint(1, 4, (count, 1), generator=generator)
    clean = torch.sin(frequency * t + 6.28 * torch.rand(count, 1, generator=generator))
    noisy = clean + 0.4 * torch.randn(count, 24, generator=generator)
    return TensorDataset(noisy, clean)


def main():
    lightning.seed_everything(149, verbose=False)
    train_loader = DataLoader(waves(640, seed=1), batch_size=64, shuffle=True)
    val_loader = DataLoader(waves(200, seed=2), batch_size=64)
    trainer = lightning.Trainer(
        max_epochs=4,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        gradient_clip_val=1.0,
        log_every_n_steps=5,
    )
    model = Denoiser()
    trainer.fit(model, train_loader, val_loader)
    metrics = {name: round(value.item(), 4) for name, value in trainer.callback_metrics.items()}
    print(f"{trainer.global_step} steps: {metrics}")


if __name__ == "__main__":
    main()
