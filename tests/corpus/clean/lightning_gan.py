import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


class GAN(L.LightningModule):
    def __init__(self, latent=8):
        super().__init__()
        self.automatic_optimization = False
        self.latent = latent
        self.generator = nn.Sequential(nn.Linear(latent, 32), nn.ReLU(), nn.Linear(32, 2))
        self.discriminator = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))

    def forward(self, z):
        return self.generator(z)

    def training_step(self, batch):
        (real,) = batch
        g_opt, d_opt = self.optimizers()
        z = torch.randn(len(real), self.latent, device=self.device)

        self.toggle_optimizer(g_opt)
        fake = self(z)
        g_loss = F.binary_cross_entropy_with_logits(self.discriminator(fake), torch.ones(len(real), 1))
        self.log("g_loss", g_loss, prog_bar=True)
        self.manual_backward(g_loss)
        g_opt.step()
        g_opt.zero_grad()
        self.untoggle_optimizer(g_opt)

        self.toggle_optimizer(d_opt)
        real_loss = F.binary_cross_entropy_with_logits(self.discriminator(real), torch.ones(len(real), 1))
        fake_loss = F.binary_cross_entropy_with_logits(self.discriminator(self(z).detach()), torch.zeros(len(real), 1))
        d_loss = (real_loss + fake_loss) / 2
        self.log("d_loss", d_loss, prog_bar=True)
        self.manual_backward(d_loss)
        d_opt.step()
        d_opt.zero_grad()
        self.untoggle_optimizer(d_opt)

    def on_train_epoch_end(self):
        with torch.no_grad():
            sample = self(torch.randn(64, self.latent))
        self.print(sample.mean(0))

    def configure_optimizers(self):
        g = torch.optim.Adam(self.generator.parameters(), lr=1e-3, betas=(0.5, 0.999))
        d = torch.optim.Adam(self.discriminator.parameters(), lr=1e-3, betas=(0.5, 0.999))
        return [g, d], []


L.seed_everything(0)
points = torch.randn(512, 2) * 0.3 + torch.tensor([1.0, -1.0])
loader = DataLoader(TensorDataset(points), batch_size=64, shuffle=True)
trainer = L.Trainer(max_epochs=4, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False)
trainer.fit(GAN(), loader)
