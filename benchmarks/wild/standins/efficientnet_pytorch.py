"""A stand-in for efficientnet_pytorch: a small network, its parts named alike, with fixed weights."""

import torch
from torch import nn


class EfficientNet(nn.Module):
    """A convolution, two blocks with batch norms, and a classifier `_fc`."""

    def __init__(self, num_classes=1000):
        super().__init__()
        self._conv_stem = nn.Conv2d(3, 16, 3, 2, 1, bias=False)
        self._bn0 = nn.BatchNorm2d(16)
        self._blocks = nn.ModuleList(_Block(16) for _ in range(2))
        self._avg_pooling = nn.AdaptiveAvgPool2d(1)
        self._dropout = nn.Dropout(0.2)
        self._fc = nn.Linear(16, num_classes)

    @classmethod
    def from_pretrained(cls, name):  # noqa: ARG003 - the signature is the library's
        """Return a network whose weights are the same each time."""
        model = cls()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            state = cls().state_dict()
        model.load_state_dict(state)
        return model

    def forward(self, images):
        images = torch.nn.functional.silu(self._bn0(self._conv_stem(images)))
        for block in self._blocks:
            images = block(images)
        return self._fc(self._dropout(self._avg_pooling(images).flatten(start_dim=1)))


class _Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self._depthwise_conv = nn.Conv2d(width, width, 3, 1, 1, groups=width, bias=False)
        self._bn1 = nn.BatchNorm2d(width)
        self._project_conv = nn.Conv2d(width, width, 1, bias=False)
        self._bn2 = nn.BatchNorm2d(width)

    def forward(self, images):
        hidden = torch.nn.functional.silu(self._bn1(self._depthwise_conv(images)))
        return images + self._bn2(self._project_conv(hidden))
