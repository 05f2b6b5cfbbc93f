"""The training script of `billion.py`: a decoder-only transformer, built on the meta device and sharded.

Started by `truestep run -n 4`. Besides training it notes seconds and peak memory of each phase, one file per
process. With --kill one process kills itself in the step after the snapshot, the first time.
"""

import argparse
import json
import math
import os
import signal
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import truestep as ts

NUM_STEPS, SAVED_STEP, NUM_LANES = 4, 3, 4
SEQUENCE = 32
BLOCK_PARAMETERS_PER_SQUARE = 12
"""Of a block, in units of its width squared: four for attention, eight for the layers after it."""


class Block(nn.Module):
    """Attention and two layers, each with a norm before it."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.norm, self.inner_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mixed = nn.Linear(width, 3 * width, bias=False)
        self.merged = nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        heads = self.mixed(self.norm(x)).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.merged(seen.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.inner_norm(x))))


class Words(nn.Embedding):
    """Small enough that the same weights can be the last layer."""

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=0.02)


class Decoder(nn.Module):
    """Embeddings are tied to the last layer; positions are a buffer that is not part of the state."""

    def __init__(self, num_parameters: float) -> None:
        super().__init__()
        width = 1536 if num_parameters >= 5e8 else 512 if num_parameters >= 1e7 else 64
        num_words = 16 * width
        num_blocks = math.ceil(
            (num_parameters - num_words * width) / (BLOCK_PARAMETERS_PER_SQUARE * width**2)
        )
        self.embedding = Words(num_words, width)
        self.register_buffer("positions", torch.empty(SEQUENCE, width), persistent=False)
        self.blocks = nn.ModuleList(Block(width, width // 64) for _ in range(num_blocks))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, num_words, bias=False)
        self.head.weight = self.embedding.weight

    def reset_parameters(self) -> None:
        rate = torch.exp(torch.arange(self.positions.shape[1]) * (-9.0 / self.positions.shape[1]))
        self.positions.copy_(torch.sin(torch.arange(SEQUENCE)[:, None] * rate))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens) + 0.02 * self.positions[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Notes:
    """Seconds and peak memory of each phase of this process, line by line in a file of its own."""

    def __init__(self, folder: Path) -> None:
        rank = int(os.environ.get("RANK", "0"))
        self._path = folder / f"notes-{rank}.jsonl"
        self.start()

    def start(self) -> None:
        """Begin a phase: the peak is that of what follows."""
        Path("/proc/self/clear_refs").write_text("5")
        self._begun_s, self._begun_cpu_s = time.monotonic(), time.process_time()

    def end(self, phase: str, **more: Any) -> None:
        """Note a phase, and begin the next one."""
        status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
        peak, anonymous = (int(status[key].split()[0]) * 1024 for key in ("VmHWM", "RssAnon"))
        seconds, cpu_s = time.monotonic() - self._begun_s, time.process_time() - self._begun_cpu_s
        line = {"phase": phase, "seconds": seconds, "cpu": cpu_s, "peak": peak, "own": anonymous}
        with self._path.open("a") as file:
            file.write(json.dumps({**line, **more}) + "\n")
        self.start()


def parts(state: Any) -> list[tuple[str, Tensor]]:
    """What this process holds of every tensor of a state."""
    from truestep.bits import tensors_in

    return [(name, getattr(tensor, "_local_tensor", tensor)) for name, tensor in tensors_in(state)]


def die_once(mark: Path) -> None:
    """Kill the second process between forward and backward, the first time it comes there."""
    if os.environ["RANK"] == "1" and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--parameters", type=float, default=1e9)
    parser.add_argument("--kill", action="store_true")
    options = parser.parse_args()
    notes = Notes(options.folder)
    # No second copy of the state in memory: training waits while a snapshot is written.
    snapshots = ts.Snapshots(every_s=None, every_steps=SAVED_STEP, in_background=False)
    run = ts.Run(
        options.folder / "run", seed=7, lanes=NUM_LANES, threads=1, snapshots=snapshots, progress=False
    )
    notes.end("start")
    with torch.device("meta"):
        model = Decoder(options.parameters)
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    run.place(model, parallel="fsdp")
    notes.end("place", parameters=num_parameters)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    run.track(model=model, optimizer=optimizer)
    made = torch.Generator().manual_seed(3)
    tokens = torch.randint(0, model.embedding.num_embeddings, (64, SEQUENCE + 1), generator=made)
    loader = ts.Loader(TensorDataset(tokens), batch_size=NUM_LANES)
    steps = run.steps(loader, steps=100)
    first = run.cursor
    notes.end("load" if first else "begin")
    for step in steps:
        if step.index == SAVED_STEP and first < SAVED_STEP:
            notes.end("save")
        for (sample,) in step:
            logits = model(sample[:, :-1])
            if options.kill and step.index == SAVED_STEP:
                die_once(options.folder / "killed")
            step.backward(F.cross_entropy(logits.flatten(0, 1), sample[:, 1:].flatten()))
        step.update(optimizer, clip_norm=1.0)
        notes.end("step", number=step.index)
        if step.index == NUM_STEPS - 1:
            break
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    notes.end("digest", digest=ts.digest(parts(state)), cursor=run.cursor)
    run.close()


if __name__ == "__main__":
    main()
