"""Hugging Face Trainer with a tiny random BERT: which of two keywords does the sentence hold?"""

import tempfile

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainingArguments,
    set_seed,
)

CLS, FIRST, VOCABULARY, LENGTH = 1, 7, 40, 10


class Keywords(Dataset):
    def __init__(self, count, seed):
        rng = np.random.default_rng(seed)
        tokens = rng.integers(FIRST, VOCABULARY, (count, LENGTH))
        tokens[:, 0] = CLS
        self.labels = rng.integers(0, 2, count)
        for row, label in zip(tokens, self.labels, strict=True):
            places = rng.choice(np.arange(1, LENGTH), 2, replace=False)
            row[places] = 5 + label
        self.tokens = torch.tensor(tokens)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return {
            "input_ids": self.tokens[i],
            "attention_mask": torch.ones(LENGTH, dtype=torch.long),
            "labels": int(self.labels[i]),
        }


def accuracy(prediction):
    return {"accuracy": float((prediction.predictions.argmax(axis=-1) == prediction.label_ids).mean())}


def main():
    set_seed(157)
    model = BertForSequenceClassification(
        BertConfig(
            vocab_size=VOCABULARY,
            hidden_size=32,
            num_hidden_layers=1,
            num_attention_heads=4,
            intermediate_size=64,
            max_position_embeddings=LENGTH,
            num_labels=2,
        )
    )
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            num_train_epochs=4,
            per_device_train_batch_size=64,
            per_device_eval_batch_size=128,
            learning_rate=5e-3,
            weight_decay=0.01,
            warmup_steps=6,
            eval_strategy="epoch",
            save_strategy="no",
            logging_strategy="epoch",
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
            seed=157,
        )
        trainer = Trainer(
            model=model,
            args=arguments,
            train_dataset=Keywords(640, seed=1),
            eval_dataset=Keywords(256, seed=2),
            compute_metrics=accuracy,
        )
        trainer.train()
        print(f"accuracy {trainer.evaluate()['eval_accuracy']:.3f}")


if __name__ == "__main__":
    main()
