"""Train with Lightning's Trainer, which goes on from its last checkpoint.

As in https://lightning.ai/docs/pytorch/stable/common/checkpointing_intermediate.html. With --stateful the
loader is torchdata's, whose state the Trainer saves and restores.
"""

import lightning as L
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import ModelCheckpoint
from task import BATCH, NUM_STEPS, SAVE_EVERY, SEED, Samples, digest, make_net, make_parser
from torch.utils.data import DataLoader


class Classifier(L.LightningModule):
    def __init__(self, dropout):
        super().__init__()
        self.net = make_net(dropout)

    def training_step(self, batch, batch_idx):  # noqa: ARG002 - Lightning calls it like this
        rows, labels = batch
        loss = F.cross_entropy(self.net(rows), labels)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def main():
    parser = make_parser()
    parser.add_argument("--stateful", action="store_true", help="use torchdata's StatefulDataLoader")
    args = parser.parse_args()

    L.seed_everything(SEED, workers=True)
    make_loader = DataLoader
    if args.stateful:
        from torchdata.stateful_dataloader import StatefulDataLoader  # patches torch's samplers when imported

        make_loader = StatefulDataLoader
    loader = make_loader(Samples(args.augment), batch_size=BATCH, shuffle=True, num_workers=args.workers)
    model = Classifier(args.dropout)
    keep = ModelCheckpoint(dirpath="checkpoints", every_n_train_steps=SAVE_EVERY, save_last=True)
    trainer = L.Trainer(accelerator="cpu", max_steps=NUM_STEPS, callbacks=[keep], log_every_n_steps=4)
    trainer.fit(model, loader, ckpt_path="last")
    print("weights", digest(model.net))


if __name__ == "__main__":
    main()
