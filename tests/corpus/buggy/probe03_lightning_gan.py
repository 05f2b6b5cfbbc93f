"""A GAN in Lightning, optimised by hand."""
import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class GAN(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.gen = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 4))
        self.dis = nn.Sequential(nn.Linear(4, 24), nn.LeakyReLU(0.2), nn.Linear(24, 1))

    def configure_optimizers(self):
        return (
            torch.optim.Adam(self.gen.parameters(), lr=1e-3),
            torch.optim.Adam(self.dis.parameters(), lr=1e-3),
        )

    def training_step(self, batch, _):
        (real,) = batch
        opt_g, opt_d = self.optimizers()
        with torch.no_grad():  # expect: PROBE03
            fake = self.gen(torch.randn(len(real), 6))  # expect: PROBE03
        g_loss = F.softplus(-self.dis(fake)).mean()
        opt_g.zero_grad()
        self.manual_backward(g_loss)  # expect: PROBE03
        opt_g.step()
        d_loss = F.softplus(-self.dis(real)).mean() + F.softplus(self.dis(fake.detach())).mean()
        opt_d.zero_grad()
        self.manual_backward(d_loss)
        opt_d.step()


if __name__ == "__main__":
    L.seed_everything(0)
    data = TensorDataset(torch.randn(256, 4) * 0.5 + 1)
    trainer = L.Trainer(
        max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(GAN(), DataLoader(data, batch_size=32, shuffle=True))
