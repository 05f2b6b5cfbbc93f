# Lightning by hand, closures, and a generator that steps every third batch only
import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class GAN(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.gen = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))
        self.dis = nn.Sequential(nn.Linear(3, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))

    def configure_optimizers(self):
        return [torch.optim.Adam(m.parameters(), lr=1e-3, betas=(0.5, 0.9)) for m in (self.gen, self.dis)]

    def training_step(self, batch, index):
        (real,) = batch
        opt_g, opt_d = self.optimizers()
        with torch.no_grad():
            fake = self.gen(torch.randn(len(real), 4))

        def closure():
            loss = F.softplus(-self.dis(real)).mean() + F.softplus(self.dis(fake)).mean()
            opt_d.zero_grad()
            self.manual_backward(loss)
            return loss

        opt_d.step(closure=closure)
        if index % 3 == 0:
            self.toggle_optimizer(opt_g)
            loss = F.softplus(-self.dis(self.gen(torch.randn(len(real), 4)))).mean()
            opt_g.zero_grad()
            self.manual_backward(loss)
            opt_g.step()
            self.untoggle_optimizer(opt_g)


if __name__ == "__main__":
    L.seed_everything(0)
    loader = DataLoader(TensorDataset(torch.randn(192, 3) * 0.3 + 1), batch_size=16, shuffle=True)
    L.Trainer(
        max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False,
    ).fit(GAN(), loader)
