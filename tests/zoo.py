"""Small real models with random weights, each with a batch: `model(**inputs)`. Nothing is downloaded.

Each call gives a new model in train mode, equal to the bit every time, and leaves torch's generator alone.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Sample = tuple[nn.Module, dict[str, Any]]


def _seeded(build: Callable[[], Sample]) -> Callable[[], Sample]:
    @wraps(build)
    def seeded() -> Sample:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return build()

    return seeded


class Block(nn.Module):
    """A basic residual block; both ReLUs are in `forward`, where `children()` does not see them."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + self.downsample(x))


class ResNet(nn.Module):
    """A small ResNet; ReLU, pooling and flattening are in `forward`."""

    def __init__(self, width: int = 8, num_classes: int = 10) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.layer1 = nn.Sequential(Block(width, width, 1), Block(width, width, 1))
        self.layer2 = nn.Sequential(Block(width, 2 * width, 2), Block(2 * width, 2 * width, 1))
        self.layer3 = nn.Sequential(Block(2 * width, 4 * width, 2), Block(4 * width, 4 * width, 1))
        self.fc = nn.Linear(4 * width, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(images)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.fc(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))


class LSTMClassifier(nn.Module):
    """Embedding, two LSTM layers with dropout between them, and a linear layer on the last step."""

    def __init__(self, vocabulary: int = 50, width: int = 16, num_classes: int = 4) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width, padding_idx=0)
        self.lstm = nn.LSTM(width, 2 * width, num_layers=2, batch_first=True, dropout=0.1)
        self.dropout = nn.Dropout(0.2)
        self.fc = nn.Linear(2 * width, num_classes)

    def forward(self, tokens: Tensor) -> Tensor:
        outputs, _ = self.lstm(self.embedding(tokens))
        return self.fc(self.dropout(outputs[:, -1]))


@_seeded
def resnet() -> Sample:
    """Return a ResNet of three stages with BatchNorm; `images` of shape (4, 3, 16, 16)."""
    return ResNet(), {"images": torch.randn(4, 3, 16, 16)}


@_seeded
def lstm() -> Sample:
    """Return an LSTM classifier; `tokens` of shape (4, 12)."""
    return LSTMClassifier(), {"tokens": torch.randint(1, 50, (4, 12))}


@_seeded
def bert() -> Sample:
    """Return a two-layer BERT with a classifier of three classes; its output has a loss and logits."""
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=60,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=32,
        num_labels=3,
    )
    tokens = torch.randint(1, 60, (4, 10))
    mask = torch.ones_like(tokens)
    mask[0, 7:] = 0
    inputs = {"input_ids": tokens, "attention_mask": mask, "labels": torch.tensor([0, 1, 2, 1])}
    return BertForSequenceClassification(config).train(), inputs


@_seeded
def gpt2() -> Sample:
    """Return a two-layer GPT-2 whose `lm_head.weight` is `transformer.wte.weight`; its output has a loss."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=60,
        n_embd=32,
        n_layer=2,
        n_head=4,
        n_positions=32,
        use_cache=False,
        bos_token_id=1,
        eos_token_id=2,
    )
    tokens = torch.randint(1, 60, (4, 10))
    return GPT2LMHeadModel(config).train(), {"input_ids": tokens, "labels": tokens.clone()}


@_seeded
def t5() -> Sample:
    """Return a two-layer T5 with one embedding under four names; its output has a loss."""
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=60,
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_layers=2,
        num_heads=4,
        use_cache=False,
        decoder_start_token_id=0,
    )
    inputs = {"input_ids": torch.randint(1, 60, (4, 10)), "labels": torch.randint(1, 60, (4, 6))}
    return T5ForConditionalGeneration(config).train(), inputs


ZOO: dict[str, Callable[[], Sample]] = {
    "resnet": resnet,
    "lstm": lstm,
    "bert": bert,
    "gpt2": gpt2,
    "t5": t5,
}
"""For `@pytest.mark.parametrize("name", ZOO)`: `model, inputs = ZOO[name]()`."""


def loss_of(output: Any) -> Tensor:
    """Return the loss that transformers computed, or the mean square of a plain tensor."""
    if isinstance(output, Tensor):
        return output.square().mean()
    return output.loss
