import torch
from torch import nn
from torch.utils.data import DataLoader, Sampler, TensorDataset


class BucketSampler(Sampler):
    """Batches of similar length, in an order that depends on the epoch."""

    def __init__(self, lengths, batch_size, seed=0):
        self.lengths = lengths
        self.batch_size = batch_size
        self.seed = seed
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        g = torch.Generator()
        g.manual_seed(self.seed + self.epoch)
        noisy = self.lengths.float() + 2 * torch.rand(len(self.lengths), generator=g)
        batches = noisy.argsort().split(self.batch_size)
        for b in torch.randperm(len(batches), generator=g).tolist():
            yield batches[b].tolist()

    def __len__(self):
        return (len(self.lengths) + self.batch_size - 1) // self.batch_size


class Encoder(nn.Module):
    def __init__(self, vocab=30, dim=24):
        super().__init__()
        self.embedding = nn.Embedding(vocab, dim, padding_idx=0)
        self.rnn = nn.LSTM(dim, dim, batch_first=True)
        self.head = nn.Linear(dim, 2)

    def forward(self, tokens, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(
            self.embedding(tokens), lengths, batch_first=True, enforce_sorted=False)
        _, (h, _) = self.rnn(packed)
        return self.head(h[-1])


def synthesize(n, longest=16):
    lengths = torch.randint(4, longest + 1, (n,))
    tokens = torch.randint(1, 30, (n, longest))
    tokens[torch.arange(longest)[None] >= lengths[:, None]] = 0
    labels = (tokens == 7).any(1).long()
    return tokens, lengths, labels


torch.manual_seed(0)
tokens, lengths, labels = synthesize(500)
dataset = TensorDataset(tokens, lengths, labels)
sampler = BucketSampler(lengths, 25)  # expect: DATA03
loader = DataLoader(dataset, batch_sampler=sampler)  # expect: DATA03
model = Encoder()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
loss_fn = nn.CrossEntropyLoss()

for epoch in range(3):  # expect: DATA03
    seen = correct = 0
    for batch_tokens, batch_lengths, batch_labels in loader:
        logits = model(batch_tokens, batch_lengths)
        loss = loss_fn(logits, batch_labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        correct += (logits.detach().argmax(1) == batch_labels).sum().item()
        seen += len(batch_labels)
    print(epoch, correct / seen)
