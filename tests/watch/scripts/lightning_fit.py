# ruff: noqa: E402
"""Lightning, as its documentation shows."""

import warnings

warnings.filterwarnings("ignore")
import sys

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Classifier(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 2))

    def training_step(self, batch, batch_index):
        x, y = batch
        loss = F.cross_entropy(self.net(x), y)  # -> ForwardPass
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)


L.seed_everything(7)
data = TensorDataset(torch.randn(40, 4), torch.randint(0, 2, (40,)))
loader = DataLoader(data, batch_size=8, shuffle=True)
model = Classifier()
trainer = L.Trainer(
    max_epochs=2,
    accelerator="cpu",
    gradient_clip_val=0.5,
    default_root_dir=sys.argv[1],
    enable_progress_bar=False,
    enable_model_summary=False,
    logger=False,
)
trainer.fit(model, loader)  # -> BatchFetched BackwardPass ClippingCalled OptimizerStep GradientsZeroed
print("digest", [float(value.sum()).hex() for value in model.state_dict().values()])
