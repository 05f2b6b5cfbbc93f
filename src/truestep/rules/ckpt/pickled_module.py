"""A whole module is pickled, or a file is read in a way that runs code.

## What it finds
`torch.save(model)` instead of `torch.save(model.state_dict())`, and `torch.load(..., weights_only=False)` for
a file that needs no such freedom or that holds a whole module.

## Why it matters
A pickled module holds the path of its class and not the class: after renaming or moving code the file cannot
be read. Reading it runs whatever is in the file, so a file from elsewhere can do anything on this machine.

## How to fix
Save `model.state_dict()`, make the model from code, and load with `weights_only=True`.
"""

from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta
from truestep.watch.evidence.facts.structure import CheckpointLoaded, FileLoaded, FileSaved, StateSaved

RULE = Meta(
    code="CKPT03",
    severity="warning",
    fix="Save model.state_dict(), and load it with weights_only=True into a model made from code.",
)


def is_observed(evidence: Evidence) -> bool:
    """Whether something was saved or read."""
    return evidence.has(FileSaved) or evidence.has(FileLoaded)


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find files that depend on code, or run it."""
    for saved in evidence.of(StateSaved):
        if saved.facts.modules and saved.facts.is_direct:
            yield Finding.at(
                saved,
                "a whole module is pickled: the file depends on where its class is in the code",
                evidence=f"in what is saved: {', '.join(saved.facts.modules)}",
            )
    for moment in evidence.of(CheckpointLoaded):
        facts = moment.facts
        if facts.is_weights_only is not False or not facts.is_direct:
            continue
        if facts.modules:
            found = f"holds {', '.join(facts.modules)}, pickled whole"
        elif not facts.other_classes:
            found = "holds tensors and plain values only, which weights_only=True reads as well"
        else:
            continue
        yield Finding.at(moment, "weights_only=False lets the file run code", evidence=f"the file {found}")


BUGGY = """
import io

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 1)
file = io.BytesIO()
torch.save(model, file)  # expect: CKPT03
file.seek(0)
again = torch.load(file, weights_only=False)  # expect: CKPT03
print(again(torch.ones(1, 4)))
"""

CLEAN = """
import io
import random

import numpy
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 1)
file = io.BytesIO()
state = {"model": model.state_dict(), "numpy": numpy.random.default_rng(0), "random": random.getstate()}
torch.save(state, file)
file.seek(0)
state = torch.load(file, weights_only=False)
model.load_state_dict(state["model"])
print(model(torch.ones(1, 4)))
"""
