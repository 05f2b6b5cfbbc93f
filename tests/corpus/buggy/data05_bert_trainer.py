"""Fine-tune a tiny BERT with the Trainer."""
import tempfile

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments, set_seed


class Sentences(Dataset):
    def __init__(self, ids, labels):
        self.ids, self.labels = ids, labels

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return {"input_ids": self.ids[i], "attention_mask": torch.ones_like(self.ids[i]), "labels": self.labels[i]}


def make(n=240, length=12, vocab=50):
    ids = torch.randint(5, vocab, (n, length))
    labels = (ids == 9).any(1).long()
    flip = torch.rand(n) < 0.5
    ids[flip, 3] = 9
    labels[flip] = 1
    return ids, labels


def compute_metrics(output):
    guess = np.argmax(output.predictions, axis=-1)
    return {"accuracy": float((guess == output.label_ids).mean())}


def main():
    set_seed(1)
    ids, labels = make()
    train = Sentences(ids[:200], labels[:200])
    test = Sentences(ids[-80:], labels[-80:])  # expect: DATA05
    config = BertConfig(vocab_size=50, hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
                        intermediate_size=64, max_position_embeddings=16, num_labels=2)
    model = BertForSequenceClassification(config)
    with tempfile.TemporaryDirectory() as out:
        args = TrainingArguments(output_dir=out, num_train_epochs=2, per_device_train_batch_size=20,
                                 per_device_eval_batch_size=40, learning_rate=1e-3, eval_strategy="epoch",
                                 save_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True, logging_steps=5)
        trainer = Trainer(model=model, args=args, train_dataset=train, eval_dataset=test,  # expect: DATA05
                          compute_metrics=compute_metrics)
        trainer.train()  # expect: DATA05
        print(trainer.evaluate())


if __name__ == "__main__":
    main()
