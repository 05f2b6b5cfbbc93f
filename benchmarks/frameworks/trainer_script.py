"""Train with Hugging Face's Trainer, going on from its last checkpoint.

As in https://huggingface.co/docs/transformers/trainer: the seed and the data's order are left to the Trainer.
"""

from pathlib import Path

import torch
import torch.nn.functional as F
from task import BATCH, NUM_STEPS, SAVE_EVERY, SEED, Samples, digest, make_net, make_parser
from torch import nn
from transformers import Trainer, TrainingArguments, set_seed
from transformers.trainer_utils import get_last_checkpoint


class Classifier(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.net = make_net(dropout)

    def forward(self, rows, labels):
        logits = self.net(rows)
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


def collate(samples):
    rows, labels = zip(*samples, strict=True)
    return {"rows": torch.stack(rows), "labels": torch.stack(labels)}


def main():
    args = make_parser().parse_args()
    set_seed(SEED)
    model = Classifier(args.dropout)
    arguments = TrainingArguments(
        output_dir="checkpoints",
        seed=SEED,
        max_steps=NUM_STEPS,
        save_steps=SAVE_EVERY,
        per_device_train_batch_size=BATCH,
        dataloader_num_workers=args.workers,
        learning_rate=1e-2,
        use_cpu=True,
        report_to="none",
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=Samples(args.augment), data_collator=collate)
    last = get_last_checkpoint("checkpoints") if Path("checkpoints").is_dir() else None
    trainer.train(resume_from_checkpoint=last)
    print("weights", digest(model.net))


if __name__ == "__main__":
    main()
