"""Classify short messages; the vocabulary is collected from the training text."""

import random

import torch
from torch import nn

TOPICS = {
    "sport": "match goal team coach league score player season stadium cup".split(),
    "food": "soup bread spice oven salad taste dinner recipe sauce grill".split(),
    "travel": "train flight hotel ticket beach island border luggage map tour".split(),
}
FILLER = "the a of and very some with for about from today again maybe new old".split()


def messages(count, rng):
    topics = list(TOPICS)
    for _ in range(count):
        topic = rng.choice(topics)
        words = rng.choices(TOPICS[topic], k=2) + rng.choices(FILLER, k=4)
        rng.shuffle(words)
        yield words, topics.index(topic)


def build_vocabulary(corpus):
    words = {word for text, _ in corpus for word in text}
    return {word: index for index, word in enumerate(words)}  # expect: REPRO02


def encode(corpus, vocabulary):
    ids = torch.tensor([[vocabulary[word] for word in text] for text, _ in corpus])
    return ids, torch.tensor([topic for _, topic in corpus])


class MessageNet(nn.Module):
    def __init__(self, vocabulary, width=32):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.hidden = nn.Linear(width, width)
        self.out = nn.Linear(width, len(TOPICS))

    def forward(self, ids):
        return self.out(torch.relu(self.hidden(self.embed(ids).mean(dim=1))))


def main():
    torch.manual_seed(0)
    rng = random.Random(0)
    corpus, unseen = list(messages(480, rng)), list(messages(120, rng))
    vocabulary = build_vocabulary(corpus)
    ids, topic = encode(corpus, vocabulary)
    test_ids, test_topic = encode(unseen, vocabulary)

    model = MessageNet(len(vocabulary))
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for epoch in range(3):
        model.train()
        for index in torch.randperm(len(ids)).split(32):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(ids[index]), topic[index])
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            accuracy = (model(test_ids).argmax(dim=1) == test_topic).float().mean().item()
        print(f"epoch {epoch}: loss {loss.item():.6f}, accuracy {accuracy:.3f}")


if __name__ == "__main__":
    main()
