"""Answer questions about a text that was just read: "whose son is Caleb?", with a small T5 made from nothing.

Needs: pip install transformers; apt-get install bible-kjv (the text)
"""

import argparse
import random
import re
import subprocess

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor, nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import OneCycleLR
from torchmetrics.aggregation import MeanMetric
from transformers import T5Config, T5ForConditionalGeneration

import truestep as ts

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=1000)
args = parser.parse_args()

run = ts.Run("runs/answers", seed=7, lanes=2)

# --- Questions: wherever the text says "Caleb the son of Jephunneh", with some words on both sides. ---

verses = subprocess.run(["bible", "-f", "gen1:1-rev22:21"], capture_output=True, text=True, check=True).stdout
text = re.sub(r"^\S+ ", "", verses, flags=re.MULTILINE).replace("\n", " ")
found: dict[tuple[str, str], str] = {}  # one place for each son and father
for m in re.finditer(r"([A-Z][a-z]+),? the son of ([A-Z][a-z]+)", text):
    around = text[m.start() - 60 : m.end() + 60].split(" ")
    found[m[1], m[2]] = " ".join(around[1:-1])  # words that were cut are left out
pairs = list(ts.split(sorted(found), [0.8, 0.2], seed=7))
names = sorted({name for pair in pairs[0] for name in pair})
a_name = re.compile(r"\b(" + "|".join(names) + r")\b")

tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
tokenizer.decoder = decoders.ByteLevel()
special = ["<pad>", "</s>"]
trainer = trainers.BpeTrainer(vocab_size=4000, special_tokens=special, show_progress=False)
tokenizer.train_from_iterator([text], trainer)
PAD, END = (tokenizer.token_to_id(word) for word in special)


class Questions:
    """Questions with their answers. In training everybody gets another name each time."""

    def __init__(self, pairs: list[tuple[str, str]], *, is_renamed: bool) -> None:
        self.pairs, self.is_renamed = pairs, is_renamed

    def __len__(self) -> int:
        return len(self.pairs)

    def words(self, index: int) -> tuple[str, str]:
        son, father = self.pairs[index]
        asked = f"whose son is {son}? {found[son, father]}"
        if self.is_renamed:
            other = dict(zip(names, random.sample(names, len(names)), strict=True))  # seeded for each lane
            asked, father = a_name.sub(lambda m: other[m[1]], asked), other[father]
        return asked, father

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        asked, answer = self.words(index)
        answer_ids = [*tokenizer.encode(" " + answer).ids, END]
        return {"asked": torch.tensor(tokenizer.encode(asked).ids), "answer": torch.tensor(answer_ids)}


train_set = Questions(list(pairs[0]), is_renamed=True)
test_set = Questions(list(pairs[1]), is_renamed=False)
collate = ts.pad_collate(pad_value={"asked": PAD, "answer": -100})  # -100: no loss for padding

# --- The model has its loss inside; it is a mean over tokens, so the lanes are weighed by their tokens. ---

sizes = {"vocab_size": 4000, "d_model": 96, "d_kv": 24, "d_ff": 256, "num_layers": 2, "num_heads": 4}
marks = {"pad_token_id": PAD, "eos_token_id": END, "decoder_start_token_id": PAD}
model = run.place(T5ForConditionalGeneration(T5Config(**sizes, **marks, dropout_rate=0.0)))
optimizer = AdamW(ts.decay_groups(model, weight_decay=0.01), lr=3e-3)
scheduler = OneCycleLR(optimizer, max_lr=3e-3, total_steps=args.steps)
run.track(model=model, optimizer=optimizer, scheduler=scheduler)
Batch = dict[str, ts.Padded]


def read(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the loss and what the model predicts for each token of the answers."""
    asked, answer = batch["asked"], batch["answer"]
    told = model(input_ids=asked.values, attention_mask=asked.mask.long(), labels=answer.values)
    return told.loss, told.logits.argmax(2)


for step in run.steps(ts.Loader(train_set, batch_size=64, workers=1, collate=collate), steps=args.steps):
    for batch in step:
        loss, _ = read(model, batch)
        step.backward(loss, weight=int(batch["answer"].mask.sum()))
    step.update(optimizer, clip_norm=1.0, scheduler=scheduler)

# --- Judged by pairs that were never asked for. An answer counts if all of it is right. ---


def exact(model: nn.Module, batch: Batch) -> tuple[Tensor]:
    _, predicted = read(model, batch)
    answer = batch["answer"]
    return (((predicted == answer.values) | ~answer.mask).all(1).double(),)


test_loader = ts.Loader(test_set, batch_size=64, shuffle=False, collate=collate)
accuracy = run.evaluate(model, test_loader, metric=MeanMetric(), forward=exact)


def chance(index: int) -> float:
    """Return how likely it is to hit the father when any other name of the text is named."""
    son, father = test_set.pairs[index]
    others = set(re.findall(r"[a-z,;] ([A-Z][a-z]+)", found[son, father])) - {son} | {father}
    return 1 / len(others)


print(f"{len(train_set)} questions to learn from, {len(test_set)} to be judged by\n")
print(f"any other name of the text  {sum(map(chance, range(len(test_set)))) / len(test_set):.3f}")
print(f"T5, {sum(weight.numel() for weight in model.parameters()):,} weights       {accuracy:.3f}\n")
model.eval()
for index in range(3):
    asked, father = test_set.words(index)
    ids = torch.tensor([tokenizer.encode(asked).ids])
    told = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=8)
    print(f"{asked}\n  answer: {tokenizer.decode(told[0].tolist()).strip()}, right: {father}")
