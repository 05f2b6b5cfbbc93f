"""Label every residue of a synthetic protein with its secondary structure."""

import torch
import torch.nn.functional as F
from torch import nn

RESIDUES, LENGTH, STRUCTURES = 20, 48, 3


def proteins(count, seed):
    """Structures come in runs; each structure has its own preference for residues."""
    generator = torch.Generator().manual_seed(seed)
    taste = 1.5 * torch.randn(STRUCTURES, RESIDUES, generator=torch.Generator().manual_seed(0))
    runs = torch.randint(0, STRUCTURES, (count, LENGTH // 6), generator=generator)
    structure = runs.repeat_interleave(6, dim=1)
    gumbel = -torch.log(-torch.log(torch.rand(count, LENGTH, RESIDUES, generator=generator)))
    return (taste[structure] + gumbel).argmax(dim=-1), structure


class StructureNet(nn.Module):
    """Embedding, two wide one-dimensional convolutions and a score per residue."""

    def __init__(self, width=48):
        super().__init__()
        self.embed = nn.Embedding(RESIDUES, width)
        self.conv1 = nn.Conv1d(width, width, 7, padding=3)
        self.conv2 = nn.Conv1d(width, width, 7, padding=3)
        self.score = nn.Conv1d(width, STRUCTURES, 1)

    def forward(self, residues):
        h = self.embed(residues).transpose(1, 2)
        h = F.relu(self.conv1(h))
        h = h + F.relu(self.conv2(h))
        return self.score(h)


class Trainer:
    def __init__(self, model, lr=2e-3, batch_size=24):
        self.model = model
        self.batch_size = batch_size
        self.optimizer = torch.optim.Adam(model.parameters(), lr=lr)

    def compute_loss(self, residues, structure):
        predicted = self.model(residues)
        return F.cross_entropy(predicted, structure)

    def train_epoch(self, residues, structure):
        self.model.train()
        losses = []
        for index in torch.randperm(len(residues)).split(self.batch_size):
            loss = self.compute_loss(residues[index], structure[index])
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            losses.append(loss.item())
        return sum(losses) / len(losses)

    @torch.inference_mode()
    def q3(self, residues, structure):
        self.model.eval()
        return (self.model(residues).argmax(dim=1) == structure).float().mean().item()


def main():
    torch.manual_seed(8)
    train, test = proteins(384, seed=1), proteins(96, seed=2)
    trainer = Trainer(StructureNet())
    for epoch in range(4):
        loss = trainer.train_epoch(*train)
        print(f"epoch {epoch}: loss {loss:.4f}, Q3 {trainer.q3(*test):.3f}")


if __name__ == "__main__":
    main()
