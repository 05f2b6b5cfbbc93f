"""Hugging Face Trainer with a small causal model on padded texts."""

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class Texts(Dataset):
    def __init__(self, count):
        generator = torch.Generator().manual_seed(0)
        lengths = torch.randint(4, 24, (count,), generator=generator)
        self.items = [torch.randint(2, 60, (int(n),), generator=generator) for n in lengths]

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return self.items[index]


def collate(items):
    length = max(map(len, items))
    tokens = torch.ones(len(items), length, dtype=torch.long)
    labels = torch.full((len(items), length), -100)
    for row, item in enumerate(items):
        tokens[row, : len(item)] = labels[row, : len(item)] = item
    return {"input_ids": tokens, "attention_mask": (labels != -100).long(), "labels": labels}


if __name__ == "__main__":
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=60, n_positions=32, n_embd=32, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
    arguments = TrainingArguments(
        output_dir="out",
        max_steps=8,
        per_device_train_batch_size=4,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        logging_steps=4,
        seed=3,
        disable_tqdm=True,
        remove_unused_columns=False,
    )
    Trainer(model=GPT2LMHeadModel(config), args=arguments, train_dataset=Texts(96), data_collator=collate).train()
