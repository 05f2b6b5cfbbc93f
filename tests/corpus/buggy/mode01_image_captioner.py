"""Describe small scenes: a convolutional encoder and a recurrent decoder, trained together."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

VOCABULARY, WORDS, BOS = 12, 4, 0


class Encoder(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, stride=2, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.conv2 = nn.Conv2d(16, 32, 3, stride=2, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(32)
        self.out = nn.Linear(32 * 16, width)

    def forward(self, image):
        h = torch.relu(self.bn1(self.conv1(image)))
        h = torch.relu(self.bn2(self.conv2(h)))
        return self.out(h.flatten(1))


class Decoder(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.gru = nn.GRU(width, width, batch_first=True)
        self.drop = nn.Dropout(0.2)
        self.out = nn.Linear(width, VOCABULARY)

    def forward(self, code, words):
        hidden, _ = self.gru(self.embed(words), code.unsqueeze(0))
        return self.out(self.drop(hidden))


def scenes(count, seed):
    """A bright square somewhere; the caption names row, column, size and the end."""
    generator = torch.Generator().manual_seed(seed)
    row, column, size = (torch.randint(0, 3, (count,), generator=generator) for _ in range(3))
    image = 0.6 * torch.randn(count, 1, 16, 16, generator=generator)
    for i in range(count):
        side = 2 + int(size[i])
        top, left = 1 + 5 * int(row[i]), 1 + 5 * int(column[i])
        image[i, 0, top : top + side, left : left + side] += 2.0
    caption = torch.stack([1 + row, 4 + column, 7 + size, torch.full((count,), 10)], dim=1)
    return TensorDataset(image, caption)


def shifted(caption):
    return torch.cat([torch.full((len(caption), 1), BOS), caption[:, :-1]], dim=1)


def train_epoch(encoder, decoder, loader, optimizer):
    encoder.train()
    decoder.train()
    for image, caption in loader:
        logits = decoder(encoder(image), shifted(caption))
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), caption.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


@torch.no_grad()
def word_accuracy(encoder, decoder, loader):
    decoder.eval()
    hits = seen = 0
    for image, caption in loader:  # expect: MODE01
        code = encoder(image)
        words = decoder(code, shifted(caption)).argmax(dim=-1)
        hits += (words == caption).sum().item()
        seen += caption.numel()
    return hits / seen


def main():
    torch.manual_seed(0)
    train_loader = DataLoader(scenes(480, seed=1), batch_size=32, shuffle=True)
    val_loader = DataLoader(scenes(96, seed=2), batch_size=32)
    encoder, decoder = Encoder(), Decoder()
    optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=2e-3)
    for epoch in range(4):
        loss = train_epoch(encoder, decoder, train_loader, optimizer)
        accuracy = word_accuracy(encoder, decoder, val_loader)
        print(f"epoch {epoch}: loss {loss:.4f}, word accuracy {accuracy:.4f}")


if __name__ == "__main__":
    main()
