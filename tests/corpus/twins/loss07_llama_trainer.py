"""Padded causal language modelling with the Trainer; padding is a label too."""
import tempfile

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, set_seed

PAD = 0


def corpus(n):
    g = torch.Generator().manual_seed(4)
    out = []
    for _ in range(n):
        length = int(torch.randint(4, 18, (1,), generator=g))
        first = int(torch.randint(2, 60, (1,), generator=g))
        out.append(torch.tensor([2 + (first + 3 * i) % 58 for i in range(length)] + [1]))
    return out


class Collator:
    def __init__(self, pad):
        self.pad = pad

    def __call__(self, items):
        ids = pad_sequence(items, batch_first=True, padding_value=self.pad)
        mask = (ids != self.pad).long()
        labels = ids.clone()
        labels[mask == 0] = -100
        return {"input_ids": ids, "attention_mask": mask, "labels": labels}


set_seed(1)
config = LlamaConfig(vocab_size=60, hidden_size=24, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=32, pad_token_id=PAD, bos_token_id=2, eos_token_id=1)
model = LlamaForCausalLM(config)
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(output_dir=folder, num_train_epochs=2, per_device_train_batch_size=16, learning_rate=2e-3, report_to=[], save_strategy="no", use_cpu=True, disable_tqdm=True)
    trainer = Trainer(model=model, args=arguments, train_dataset=corpus(160), data_collator=Collator(PAD))
    trainer.train()
