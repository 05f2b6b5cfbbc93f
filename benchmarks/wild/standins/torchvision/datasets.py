# ruff: noqa: ARG002 - signatures are torchvision's
"""Data sets of torchvision's names and item types, made of noise around one pattern per class.

The number of training items is the variable WILD_ITEMS; a test set has half of them. Nothing is read or
downloaded. Items differ from split to split.
"""

import os
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset


def _num_items(is_train):
    count = int(os.environ.get("WILD_ITEMS", "256"))
    return count if is_train else max(count // 2, 8)


def _make(count, size, channels, num_classes, seed):
    rng = np.random.default_rng(seed)
    patterns = np.random.default_rng(7).uniform(0, 255, (num_classes, *size, channels))
    targets = rng.integers(0, num_classes, count)
    noise = rng.uniform(-60, 60, (count, *size, channels))
    images = np.clip(0.6 * patterns[targets] + noise, 0, 255).astype(np.uint8)
    return images, targets.tolist()


class VisionDataset(Dataset):
    """What the data sets of torchvision have in common."""

    def __init__(self, root=None, transforms=None, transform=None, target_transform=None):
        self.root = root
        self.transform, self.target_transform = transform, target_transform

    def _finish(self, image, target):
        if self.transform is not None:
            image = self.transform(image)
        if self.target_transform is not None:
            target = self.target_transform(target)
        return image, target

    def __len__(self):
        return len(self.data)


class _Images(VisionDataset):
    size, channels, num_classes = (28, 28), 1, 10

    def __init__(self, root=None, train=True, transform=None, target_transform=None, download=False, **_):
        super().__init__(root, None, transform, target_transform)
        self.train = train
        images, targets = _make(_num_items(train), self.size, self.channels, self.num_classes, int(train))
        self.classes = [str(number) for number in range(self.num_classes)]
        self.class_to_idx = {name: number for number, name in enumerate(self.classes)}
        self._keep(images, targets)

    def _keep(self, images, targets):
        self.data, self.targets = images, targets

    def __getitem__(self, index):
        return self._finish(Image.fromarray(np.asarray(self.data[index])), int(self.targets[index]))


class MNIST(_Images):
    """Grey images and targets as tensors, as torchvision keeps them."""

    def _keep(self, images, targets):
        self.data, self.targets = torch.from_numpy(images[..., 0]), torch.tensor(targets)

    @property
    def train_data(self):
        return self.data

    test_data = train_data

    @property
    def train_labels(self):
        return self.targets

    test_labels = train_labels


class FashionMNIST(MNIST):
    """As MNIST."""


class KMNIST(MNIST):
    """As MNIST."""


class CIFAR10(_Images):
    """Colour images of 32 x 32 as one array."""

    size, channels = (32, 32), 3


class CIFAR100(CIFAR10):
    """As CIFAR10, with more classes."""

    num_classes = 100


class SVHN(CIFAR10):
    """As CIFAR10, with the split as a word."""

    def __init__(self, root=None, split="train", **others):
        super().__init__(root, split != "test", **others)
        self.labels = np.asarray(self.targets)


class STL10(SVHN):
    """As SVHN, larger."""

    size = (96, 96)


class FakeData(VisionDataset):
    """Noise, as torchvision has it."""

    def __init__(self, size=1000, image_size=(3, 224, 224), num_classes=10, transform=None, **others):
        super().__init__(None, None, transform)
        self.data = range(min(size, _num_items(True)))
        self.image_size, self.num_classes = image_size, num_classes

    def __getitem__(self, index):
        rng = np.random.default_rng(index)
        channels, *size = self.image_size
        pixels = rng.integers(0, 255, (*size, channels), dtype=np.uint8)
        return self._finish(Image.fromarray(pixels), int(rng.integers(self.num_classes)))


class Omniglot(VisionDataset):
    """Twenty images each of some characters."""

    def __init__(self, root=None, background=True, transform=None, target_transform=None, download=False):
        super().__init__(root, None, transform, target_transform)
        images, _ = _make(_num_items(True) // 20 * 20, (105, 105), 1, 1, int(background))
        self.data = images[..., 0]

    def __getitem__(self, index):
        return self._finish(Image.fromarray(self.data[index]), index // 20)


class ImageFolder(VisionDataset):
    """The images of a folder if it is there, else noise in two classes."""

    def __init__(self, root, transform=None, target_transform=None, **_):
        super().__init__(root, None, transform, target_transform)
        folders = (
            sorted(path for path in Path(root).iterdir() if path.is_dir()) if Path(root).is_dir() else []
        )
        self.classes = [folder.name for folder in folders] or ["a", "b"]
        self.class_to_idx = {name: number for number, name in enumerate(self.classes)}
        files = [(path, number) for number, folder in enumerate(folders) for path in sorted(folder.iterdir())]
        if not files:
            images, targets = _make(_num_items("val" not in str(root)), (64, 64), 3, 2, len(str(root)))
            files = sorted(zip(images, targets, strict=True), key=lambda item: item[1])  # as in folders
        self.data = self.samples = self.imgs = files
        self.targets = [target for _, target in files]

    def __getitem__(self, index):
        source, target = self.data[index]
        image = (
            Image.fromarray(source) if isinstance(source, np.ndarray) else Image.open(source).convert("RGB")
        )
        return self._finish(image, target)
