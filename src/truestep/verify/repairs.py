"""The lines that repair a resume, in the words of the framework that the script uses.

Owns the lines and which framework it is. Each line of a data repair is measured by
benchmarks/peers_resume.py, in the rows "as repaired".
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

Framework = Literal["bare", "lightning", "accelerate", "transformers"]
Part = Literal["order", "samples", "step"]

_SIGNS: dict[Framework, tuple[str, str]] = {
    "lightning": (r"(?:pytorch_)?lightning", r"\b(?:Lightning)?Trainer\b"),
    "transformers": (r"transformers", r"\b(?:Seq2Seq)?Trainer\b"),
    "accelerate": (r"accelerate", r"\bAccelerator\b"),
}
"""What a file of the script imports, and what it must name for its loop to be the framework's."""

_LOADER = (
    "from truestep.run.data import SeededOrder, SeededSamples",
    "order = SeededOrder(len(dataset), seed=SEED)",
    "samples = SeededSamples(dataset, seed=SEED)",
    "loader = DataLoader(samples, sampler=order, batch_size=BATCH)  # workers and the rest as before",
)
_BATCH_NUMBER = "self.trainer.fit_loop.epoch_loop.total_batch_idx"
_STEP = ("torch.manual_seed(SEED + 1 + step)  # first line of each step",)
_BARE = (
    *_LOADER,
    "order.skip(batches=step, batch_size=BATCH)  # on resume; step: batches trained on so far",
)
_LIGHTNING = (
    *_LOADER,
    "def on_load_checkpoint(self, checkpoint):  # in the LightningModule",
    '    progress = checkpoint["loops"]["fit_loop"]["epoch_loop.batch_progress"]',
    '    order.skip(batches=progress["total"]["ready"], batch_size=BATCH)',
)
_SAMPLES = (
    "from truestep.run.data import SeededSamples",
    "samples = SeededSamples(dataset, seed=SEED)  # in place of the dataset",
)
_DATA: dict[Framework, dict[Part, tuple[str, ...]]] = {
    "bare": {"order": _BARE, "samples": _BARE, "step": _STEP},
    "lightning": {
        "order": _LIGHTNING,
        "samples": _LIGHTNING,
        "step": (f"torch.manual_seed(SEED + 1 + {_BATCH_NUMBER})  # first line of training_step",),
    },
    "accelerate": {
        "order": (
            "Accelerator(dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True))",
            "loader.set_epoch(epoch)  # before each epoch",
            "accelerator.skip_first_batches(loader, num_skipped)  # for the epoch that is resumed",
        ),
        "samples": (*_SAMPLES, "samples.set_epoch(epoch)  # before each epoch"),
        "step": _STEP,
    },
    "transformers": {
        "order": ("TrainingArguments(ignore_data_skip=False)",),
        "samples": (
            *_SAMPLES,
            "class SetEpoch(TrainerCallback):  # callbacks=[SetEpoch()]",
            "    def on_epoch_begin(self, args, state, control, **kwargs):",
            "        samples.set_epoch(int(state.epoch))",
        ),
        "step": (),  # the Trainer saves and restores the generators
    },
}
_USUAL = {
    "model-not-saved": "model",
    "buffers-not-saved": "model",
    "optimizer-not-saved": "optimizer",
    "scheduler-not-saved": "scheduler",
}
"""What is written where the script's own name is not known."""
_STATE_OF = {
    "module": ("{0}.state_dict()", "{0}.load_state_dict({1})"),
    "variable": ("{0}", "{0} = {1}"),
    "Random": ("{0}.getstate()", "{0}.setstate({1})"),
    "RandomState": ("{0}.get_state()", "{0}.set_state({1})"),
    "numpy Generator": ("{0}.bit_generator.state", "{0}.bit_generator.state = {1}"),
    "torch Generator": ("{0}.get_state()", "{0}.set_state({1})"),
}
"""How each kind of thing is read and given back; what else has a `state_dict` is like a module."""
_GLOBAL = {
    "generator torch": ("torch_generator", "torch.get_rng_state()", "torch.set_rng_state({1})"),
    "generator random": ("random", "random.getstate()", "random.setstate({1})"),
    "generator numpy": ("numpy", "numpy.random.get_state()", "numpy.random.set_state({1})"),
}
"""The same of the generators that belong to no variable, with the key to save them under."""


def data_lines(
    framework: Framework, parts: Iterable[Part], *, words: Mapping[str, str] | None = None
) -> tuple[str, ...]:
    """Return the lines that make order, samples and what a step draws follow from the seed.

    `words` are the script's own for `SEED`, `BATCH`, `dataset` and `loader`, as far as they are known.
    """
    lines = dict.fromkeys(line for part in parts for line in _DATA[framework][part])
    return tuple(_in_words_of_script(line, words or {}) for line in lines)


def _in_words_of_script(line: str, words: Mapping[str, str]) -> str:
    code, mark, comment = line.partition("  #")
    return re.sub(r"\w+", lambda found: words.get(found[0], found[0]), code) + mark + comment


def state_lines(  # limits: a cause, what was lost, and what the script calls its checkpoint
    framework: Framework,
    cause: str,
    *,
    names: Sequence[str] = (),
    kinds: Mapping[str, str] | None = None,
    saved: str = "state",
    loaded: str = "state",
) -> tuple[str, ...]:
    """Return the lines that save and load what was lost.

    `names` are the script's own, `kinds` what they are if that is known; `saved` and `loaded` are what the
    script calls the checkpoint.
    """
    is_whole = kinds is not None or cause in ("variable-not-saved", "end-not-restored")
    owners = dict.fromkeys(
        name if name in _GLOBAL or (is_whole and _is_attribute(name)) else _owner(name) for name in names
    )
    known = {owner: (kinds or {}).get(owner) or _kind(cause, names, owner) for owner in owners}
    usual = [] if any(map(_is_attribute, known)) else [_USUAL[cause]] if cause in _USUAL else []
    known |= dict.fromkeys(usual, "module")
    found: list[str] = []
    for owner, kind in known.items():
        if owner in _GLOBAL:
            key, read, write = _GLOBAL[owner]
        elif _is_attribute(owner):
            key, (read, write) = owner, _STATE_OF.get(kind, _STATE_OF["module"])
        else:
            continue
        if framework == "accelerate" and owner not in _GLOBAL:
            found.append(f"accelerator.register_for_checkpointing({owner})  # before load_state")
        elif framework == "bare":
            item = f'{loaded}["{key}"]'
            found.append(f'{saved}["{key}"] = {read.format(owner)}  # in what is saved')
            found.append(f"{write.format(owner, item)}  # after it is loaded")
    return tuple(found)


def _kind(cause: str, names: Sequence[str], owner: str) -> str:
    is_variable = cause in ("variable-not-saved", "end-not-restored")
    return "variable" if is_variable or _is_plain(names, owner) else "module"


def framework_of(files: Iterable[str]) -> Framework:
    """Return whose loop the script's own files use, by what they import."""
    texts = [_text(file) for file in files]
    for framework, (package, name) in _SIGNS.items():
        imports = re.compile(rf"^\s*(?:import|from)\s+{package}\b", re.MULTILINE)
        if any(imports.search(text) and re.search(name, text) for text in texts):
            return framework
    return "bare"


def _is_attribute(name: str) -> bool:
    return all(part.isidentifier() for part in name.split("."))


def _is_plain(names: Sequence[str], owner: str) -> bool:
    """Whether it is a tensor, or a list of them, and no module."""
    return any(name == owner or re.match(rf"{owner}\.\d+$", name) for name in names)


def _owner(name: str) -> str:
    return re.split(r"[.\[ ]", name, maxsplit=1)[0]


def _text(file: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8")
    except (OSError, ValueError):
        return ""
