# ruff: noqa: E402
"""Hugging Face Trainer, as its documentation shows, on a model made here."""

import sys
import warnings

warnings.filterwarnings("ignore")
import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments, set_seed

set_seed(7)


class Sentences(Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, index):
        tokens = torch.arange(8) * (index + 3) % 50
        return {"input_ids": tokens, "attention_mask": torch.ones(8, dtype=torch.long), "labels": index % 2}


config = BertConfig(
    vocab_size=50,
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=32,
    max_position_embeddings=16,
)
model = BertForSequenceClassification(config)
arguments = TrainingArguments(
    output_dir=sys.argv[1],
    num_train_epochs=1,
    per_device_train_batch_size=4,
    report_to="none",
    save_strategy="no",
    use_cpu=True,
    disable_tqdm=True,
)
trainer = Trainer(model=model, args=arguments, train_dataset=Sentences())
trainer.train()
print("digest", [float(value.sum()).hex() for value in model.state_dict().values()])
