"""A mixer over patches of small images."""
import torch
from torch import nn

torch.manual_seed(20)


class PatchMixer(nn.Module):
    """Cut images into patches and mix them."""

    def __init__(self, patch=4, dim=24):
        super().__init__()
        self.patch = patch
        self.embed = nn.Linear(patch * patch, dim)
        self.mix = nn.Sequential(nn.Linear(4, 16), nn.GELU(), nn.Linear(16, 4))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, 3)

    def forward(self, images):
        b = images.shape[0]
        cut = images.unfold(1, self.patch, self.patch).unfold(2, self.patch, self.patch)
        patches = cut.permute(1, 2, 0, 3, 4).reshape(b, 4, self.patch**2)  # expect: PROBE01
        h = self.embed(patches)
        h = h + self.mix(h.transpose(1, 2)).transpose(1, 2)
        return self.head(self.norm(h).mean(1))


images = torch.randn(256, 8, 8)
labels = torch.randint(0, 3, (256,))
images[torch.arange(256), labels] += 2
model = PatchMixer()
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
for epoch in range(3):
    total = 0.0
    for idx in torch.randperm(256).split(32):
        optimizer.zero_grad()
        loss = criterion(model(images[idx]), labels[idx])  # expect: PROBE01
        loss.backward()
        optimizer.step()
        total += loss.item() * len(idx)
    print(epoch, total / 256)
