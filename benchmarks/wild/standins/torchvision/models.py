# ruff: noqa: ARG001 - signatures are torchvision's
"""Small networks under the names of torchvision's. "Pretrained" ones load fixed weights."""

import torch
from torch import nn


class _Block(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, images):
        kept = images if self.downsample is None else self.downsample(images)
        return self.relu(self.bn2(self.conv2(self.relu(self.bn1(self.conv1(images))))) + kept)


class ResNet(nn.Module):
    """A residual network of few channels, but for the first and the last layer."""

    def __init__(self, num_classes=1000, width=8):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        self.layer1 = _Block(64, width, 1)
        self.layer2 = _Block(width, 2 * width, 2)
        self.layer3 = _Block(2 * width, 4 * width, 2)
        self.layer4 = _Block(4 * width, 512, 2)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(512, num_classes)

    def forward(self, images):
        images = self.maxpool(self.relu(self.bn1(self.conv1(images))))
        images = self.layer4(self.layer3(self.layer2(self.layer1(images))))
        return self.fc(torch.flatten(self.avgpool(images), 1))


class VGG(nn.Module):
    """Convolutions in one `features`, as many and at the same places as in VGG-16."""

    def __init__(self, num_classes=1000):
        super().__init__()
        layers, inputs = [], 3
        for width in (8, 8, 0, 8, 8, 0, 16, 16, 16, 0, 16, 16, 16, 0, 16, 16, 512, 0):
            if width:
                layers += [nn.Conv2d(inputs, width, 3, padding=1), nn.ReLU(inplace=True)]
                inputs = width
            else:
                layers += [nn.MaxPool2d(2, 2, ceil_mode=True)]
        self.features = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d(2)
        self.classifier = nn.Sequential(
            nn.Linear(2048, 64),
            nn.ReLU(True),
            nn.Dropout(),
            nn.Linear(64, 64),
            nn.ReLU(True),
            nn.Dropout(),
            nn.Linear(64, num_classes),
        )

    def forward(self, images):
        return self.classifier(torch.flatten(self.avgpool(self.features(images)), 1))


def _builder(kind):
    def build(pretrained=False, progress=True, weights=None, num_classes=1000, **_):
        model = kind(num_classes)
        if pretrained or weights:
            with torch.random.fork_rng():
                torch.manual_seed(0)
                state = kind(num_classes).state_dict()
            model.load_state_dict(state)
        return model

    return build


resnet18 = resnet34 = resnet50 = resnet101 = resnet152 = wide_resnet50_2 = _builder(ResNet)
vgg11 = vgg16 = vgg19 = alexnet = _builder(VGG)


def _weights(name):
    return type(name, (), {"DEFAULT": name, "IMAGENET1K_V1": name})


ResNet18_Weights, ResNet50_Weights, VGG16_Weights, VGG19_Weights = (
    _weights(name) for name in ("ResNet18_Weights", "ResNet50_Weights", "VGG16_Weights", "VGG19_Weights")
)
vgg = type("vgg", (), {"VGG16_Weights": VGG16_Weights, "vgg16": staticmethod(vgg16)})
resnet = type("resnet", (), {"ResNet": ResNet})


def get_model(name, **options):
    """Return a model by its name."""
    return globals()[name](**options)
