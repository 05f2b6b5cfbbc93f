# ruff: noqa: ARG002, E402 - signatures are torchvision's
"""Transforms of PIL images and tensors, as far as the wild scripts use them. Draws come from torch."""

import math

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageEnhance, ImageFilter, ImageOps


class InterpolationMode:
    """Names of PIL's filters."""

    NEAREST, BILINEAR, BICUBIC = Image.NEAREST, Image.BILINEAR, Image.BICUBIC


def _pair(size):
    return (size, size) if isinstance(size, int | float) else tuple(size) * (3 - len(size))


def _size(image):
    return tuple(image.shape[-2:]) if torch.is_tensor(image) else image.size[::-1]


def _crop(image, top, left, height, width):
    if torch.is_tensor(image):
        return image[..., top : top + height, left : left + width]
    return image.crop((left, top, left + width, top + height))


class Compose:
    """One after another."""

    def __init__(self, transforms):
        self.transforms = transforms

    def __call__(self, image):
        for transform in self.transforms:
            image = transform(image)
        return image


class ToTensor:
    """Bytes to numbers from 0 to 1, channels first."""

    def __call__(self, image):
        array = np.array(image)
        array = array[..., None] if array.ndim == 2 else array
        tensor = torch.from_numpy(array.transpose(2, 0, 1).copy())
        return tensor.float() / 255 if tensor.dtype == torch.uint8 else tensor


PILToTensor = ToTensor


class ToPILImage:
    """Channels first to an image."""

    def __init__(self, mode=None):
        self.mode = mode

    def __call__(self, image):
        if torch.is_tensor(image):
            image = (
                (image * 255).byte().permute(1, 2, 0).numpy() if image.is_floating_point() else image.numpy()
            )
        return Image.fromarray(np.squeeze(image))


class Normalize:
    """Subtract a mean, divide by a deviation, per channel."""

    def __init__(self, mean, std, inplace=False):
        self.mean, self.std = mean, std

    def __call__(self, tensor):
        mean, std = (
            torch.as_tensor(part, dtype=tensor.dtype).view(-1, 1, 1) for part in (self.mean, self.std)
        )
        return (tensor - mean) / std


class Resize:
    """To a size; one number is the shorter side."""

    def __init__(self, size, interpolation=Image.BILINEAR, **_):
        self.size, self.interpolation = size, interpolation

    def __call__(self, image):
        height, width = _size(image)
        if isinstance(self.size, int):
            ratio = self.size / min(height, width)
            size = (round(height * ratio), round(width * ratio))
        else:
            size = tuple(self.size)
        if torch.is_tensor(image):
            return F.interpolate(image[None], size, mode="bilinear")[0]
        return image.resize(size[::-1], self.interpolation)


Scale = Resize


class CenterCrop:
    """The middle."""

    def __init__(self, size):
        self.size = _pair(size)

    def __call__(self, image):
        (height, width), (rows, columns) = _size(image), self.size
        return _crop(image, (height - rows) // 2, (width - columns) // 2, rows, columns)


class Pad:
    """A border of zeros."""

    def __init__(self, padding, fill=0, padding_mode="constant"):
        self.padding = padding

    def __call__(self, image):
        if torch.is_tensor(image):
            return F.pad(image, [self.padding] * 4)
        return ImageOps.expand(image, self.padding)


class RandomCrop:
    """A part at random, of the padded image."""

    def __init__(self, size, padding=None, **_):
        self.size, self.padding = _pair(size), padding

    def __call__(self, image):
        if self.padding:
            image = Pad(self.padding)(image)
        (height, width), (rows, columns) = _size(image), self.size
        top = int(torch.randint(0, height - rows + 1, ()))
        left = int(torch.randint(0, width - columns + 1, ()))
        return _crop(image, top, left, rows, columns)


class RandomResizedCrop:
    """A part of random size, brought to one size."""

    def __init__(self, size, scale=(0.08, 1.0), ratio=(0.75, 4 / 3), interpolation=Image.BILINEAR, **_):
        self.size, self.scale, self.interpolation = _pair(size), scale, interpolation

    def __call__(self, image):
        height, width = _size(image)
        side = math.sqrt(float(torch.empty(()).uniform_(*self.scale)))
        rows, columns = max(int(height * side), 1), max(int(width * side), 1)
        return Resize(self.size, self.interpolation)(RandomCrop((rows, columns))(image))


class _Maybe:
    def __init__(self, p=0.5):
        self.p = p

    def __call__(self, image):
        return self.change(image) if torch.rand(()) < self.p else image


class RandomHorizontalFlip(_Maybe):
    """Left for right."""

    def change(self, image):
        return image.flip(-1) if torch.is_tensor(image) else ImageOps.mirror(image)


class RandomVerticalFlip(_Maybe):
    """Top for bottom."""

    def change(self, image):
        return image.flip(-2) if torch.is_tensor(image) else ImageOps.flip(image)


class Grayscale:
    """Without colours."""

    def __init__(self, num_output_channels=1):
        self.mode = "L" if num_output_channels == 1 else "RGB"

    def __call__(self, image):
        return image.convert("L").convert(self.mode)


class RandomGrayscale(_Maybe):
    """Without colours, sometimes."""

    def __init__(self, p=0.1):
        super().__init__(p)

    def change(self, image):
        return image.convert("L").convert(image.mode)


class ColorJitter:
    """Brighter or darker, with more or less contrast."""

    def __init__(self, brightness=0, contrast=0, saturation=0, hue=0):
        self.amounts = {
            ImageEnhance.Brightness: brightness,
            ImageEnhance.Contrast: contrast,
            ImageEnhance.Color: saturation,
        }

    def __call__(self, image):
        for kind, amount in self.amounts.items():
            low, high = (1 - amount, 1 + amount) if isinstance(amount, int | float) else amount
            image = kind(image).enhance(float(torch.empty(()).uniform_(max(low, 0), high)))
        return image


class RandomRotation:
    """Turned by up to so many degrees."""

    def __init__(self, degrees, **_):
        self.degrees = (-degrees, degrees) if isinstance(degrees, int | float) else degrees

    def __call__(self, image):
        return image.rotate(float(torch.empty(()).uniform_(*self.degrees)))


class RandomAffine(RandomRotation):
    """Turned only."""


class RandomApply(_Maybe):
    """A list of others, sometimes."""

    def __init__(self, transforms, p=0.5):
        super().__init__(p)
        self.change = Compose(transforms)


class GaussianBlur:
    """Out of focus."""

    def __init__(self, kernel_size, sigma=1.0):
        self.radius = sigma if isinstance(sigma, int | float) else max(sigma)

    def __call__(self, image):
        return image.filter(ImageFilter.GaussianBlur(self.radius))


class ConvertImageDtype:
    """Another type."""

    def __init__(self, dtype):
        self.dtype = dtype

    def __call__(self, image):
        return image.to(self.dtype)


class Lambda:
    """Any function."""

    def __init__(self, lambd):
        self.lambd = lambd

    def __call__(self, image):
        return self.lambd(image)


import sys

transforms = sys.modules[__name__]
