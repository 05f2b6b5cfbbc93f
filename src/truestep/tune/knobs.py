"""The knobs, in the order in which they are tried: cheap and likely ones first, compiling last.

Owns which values are worth trying and why others are not. Measures nothing and turns nothing.
"""

import platform
import shutil
from collections.abc import Callable, Mapping
from typing import Any

import torch

from truestep.errors import UsageError
from truestep.tune.knob import Knob, Part, ScriptFacts

Chosen = Mapping[str, Any]
Proposed = list[Any] | str

_DATA = Part("waiting for data", ("data",))
_MODEL = Part("the model", ("forward", "backward"))
_OPTIMIZER = Part("the optimizer", ("optimizer",))
_COMPUTING = Part("computing", ("forward", "backward", "optimizer", "other"))

_PREFETCHED = (4, 8)
_LONG_EPOCH_S = 25.0
"""Workers take about half a second to start, forked: 2 % of this."""
_COMPILERS = ("g++", "clang++", "c++")
_LEVELS = ("highest", "high", "medium")
_LEVEL_WORDS = {"high": "high (TF32)", "medium": "medium (bf16)"}


def pick(names: tuple[str, ...]) -> dict[str, Knob]:
    """Return the named knobs, all if none are named."""
    unknown = [name for name in names if name not in KNOBS]
    if unknown:
        raise UsageError(f"unknown knob {', '.join(map(repr, unknown))}. Choose from {', '.join(KNOBS)}.")
    return {name: KNOBS[name] for name in names or KNOBS}


def _workers(facts: ScriptFacts, chosen: Chosen) -> Proposed:
    if not facts.loaders and not facts.uses_run:
        return "the script does not use a DataLoader."
    now = facts.num_workers(chosen)
    reason = facts.too_small(_DATA) if now == 0 and facts.loaders else ""
    # More than cores: a worker that waits for a disk takes none.
    return reason or sorted({0, 1, 2, facts.cores, 2 * facts.cores} - {now})


def _prefetch(facts: ScriptFacts, chosen: Chosen) -> Proposed:
    if facts.num_workers(chosen) == 0:
        return "only workers prefetch, and the loader has none."
    loaders = facts.torch_loaders
    if not loaders:
        return "the loader is not torch's DataLoader and prefetches differently."
    now = max(item["prefetch"] or 2 for item in loaders)
    values = [number for number in _PREFETCHED if number > now]
    return values or f"each worker already keeps {now} batches ready."


def _persistent(facts: ScriptFacts, chosen: Chosen) -> Proposed:
    if facts.num_workers(chosen) == 0:
        return "the loader has no workers."
    loaders = facts.torch_loaders
    if not loaders:
        return "the loader is not torch's DataLoader and manages its workers differently."
    if all(item["persistent"] for item in loaders):
        return "the script already keeps its workers."
    lengths = [item["length"] for item in loaders if not item["persistent"]]
    if None in lengths:
        return "the length of the data is unknown, so workers start once."
    epoch_s = min(lengths) * facts.step_s
    if epoch_s > _LONG_EPOCH_S:
        return (
            f"an epoch takes about {epoch_s:.0f} s, and workers start in half a second: "
            "keeping them gains less than 2 %."
        )
    return [True]


def _pin_memory(facts: ScriptFacts, _chosen: Chosen) -> Proposed:
    if facts.device != "cuda":
        return f"pinned memory speeds up copies to a GPU; the model is on the {facts.device.upper()}."
    if not facts.torch_loaders:
        return "the script does not create a DataLoader of torch."
    if all(item["pin_memory"] for item in facts.torch_loaders):
        return "the script already pins its batches."
    return [True]


def _autocast(facts: ScriptFacts, _chosen: Chosen) -> Proposed:
    if facts.is_autocast:
        return "the script already uses autocast."
    if facts.models and not any(model["dtype"] == "float32" for model in facts.models):
        return f"the model is in {facts.models[0]['dtype']}, not in float32."
    if facts.models and not any(model["has_matmul"] or model["has_conv"] for model in facts.models):
        return "the model has no matrix product or convolution to run in 16 bits."
    # Not fp16: its range is so small that losses must be scaled, at places that only the script knows, and
    # CPUs have next to no kernels for it. Where a GPU lacks bf16 torch says so, and the knob is refused.
    return ["bf16"]


def _channels_last(facts: ScriptFacts, _chosen: Chosen) -> Proposed:
    has_images = not facts.models or any(model["has_conv2d"] for model in facts.models)
    return [True] if has_images else "the model has no Conv2d."


def _compile(facts: ScriptFacts, _chosen: Chosen) -> Proposed:
    if facts.models and all(model["is_compiled"] for model in facts.models):
        return "the model is already compiled."
    if facts.device == "cpu" and not any(map(shutil.which, _COMPILERS)):
        return "compiling for a CPU needs a C++ compiler, and none is installed. Install g++."
    return [True]


def _of_optimizers(facts: ScriptFacts, form: str, can: str) -> tuple[list[Mapping[str, Any]], str]:
    """Return torch's optimizers that know a form, and why there is none."""
    able = [item for item in facts.optimizers if item[can] and hasattr(torch.optim, item["class"])]
    names = ", ".join(sorted({item["class"] for item in facts.optimizers}))
    return able, f"{names} has no {form} form." if facts.optimizers and not able else ""


def _fused(facts: ScriptFacts, _chosen: Chosen) -> Proposed:
    able, reason = _of_optimizers(facts, "fused", "can_fuse")
    if able and all(item["fused"] for item in able):
        reason = "the optimizer is already fused."
    elif not reason and any(model.get("has_sparse") for model in facts.models):
        reason = "the model has sparse gradients, which fused optimizers refuse."
    return reason or [True]


def _foreach(facts: ScriptFacts, chosen: Chosen) -> Proposed:
    able, reason = _of_optimizers(facts, "foreach", "can_foreach")
    if reason:
        return reason
    if chosen.get("fused") or (able and all(item["fused"] for item in able)):
        return "the optimizer is fused, which excludes foreach."
    if facts.device == "cuda" or (able and all(item["foreach"] for item in able)):
        return "the optimizer already uses foreach, torch's default on a GPU."
    return [True]


def _threads(facts: ScriptFacts, chosen: Chosen) -> Proposed:
    if facts.device != "cpu":
        return "the model is on the GPU, so CPU threads do not speed up a step."
    numbers = {1, max(1, facts.cores // 2), facts.cores} - {chosen.get("threads", facts.threads)}
    return sorted(numbers) or "the machine has one core, and the script uses one thread."


def _matmul_precision(facts: ScriptFacts, chosen: Chosen) -> Proposed:
    if chosen.get("autocast") or facts.is_autocast:
        return "autocast already runs matrix products in 16 bits."
    if facts.models and not any(model["has_matmul"] for model in facts.models):
        return "the model has no matrix product."
    if facts.matmul_precision not in _LEVELS:
        return "the script sets it by backend (fp32_precision)."
    lower = _LEVELS[_LEVELS.index(facts.matmul_precision) + 1 :]
    if not lower:
        return f"the script already sets it to {facts.matmul_precision}."
    levels = [level for level in lower if facts.device == "cuda" or _works_on_cpu(level)]
    return levels or "this CPU has no instructions for float32 products of lower precision."


def _works_on_cpu(level: str) -> bool:
    """Whether oneDNN would round at this level on this machine.

    "medium" takes bfloat16 for matrix products (pytorch#125386), "high" TensorFloat32, which needs AMX for
    floats of 16 bits. Without them both are what "highest" is. Convolutions are not touched.
    """
    if level == "high":
        return _has("_is_amx_fp16_supported")
    return _has("_is_avx512_bf16_supported") or _has("_is_amx_tile_supported")


def _has(question: str) -> bool:
    ask = getattr(torch.cpu, question, None)  # private, and not in every version
    return bool(ask is not None and ask())


def _cudnn_benchmark(facts: ScriptFacts, _chosen: Chosen) -> Proposed:
    if facts.device != "cuda":
        return f"cuDNN runs convolutions on NVIDIA GPUs; the model is on the {facts.device.upper()}."
    if facts.models and not any(model["has_conv"] for model in facts.models):
        return "the model has no convolution."
    return [True]


def _allocator(facts: ScriptFacts, _chosen: Chosen) -> Proposed:
    if platform.libc_ver()[0] != "glibc":
        return "the process does not use glibc's allocator."
    if facts.device != "cpu":
        return "the model is on the GPU, where torch keeps freed memory anyway."
    return ["keep"]


def _written(*lines: str) -> Callable[[Any], list[str]]:
    return lambda value: [line.format(value=value) for line in lines]


def _counted(noun: str) -> Callable[[Any], str]:
    return lambda number: f"{number or 'no'} {noun}{'s' * (number != 1)}"


def _named(words: str) -> Callable[[Any], str]:
    return lambda _: words


_FIRST = "  # first thing after the imports"
_TABLE = (
    Knob(
        name="workers",
        propose=_workers,
        words=_counted("worker"),
        lines=_written(
            "loader = DataLoader(..., num_workers={value})  # truestep.Loader(..., workers={value})"
        ),
        # What a dataset draws (augmentation) comes from the workers' generators then.
        changes_bits=True,
        setting="workers",
        plan=lambda value: {"workers": value},
    ),
    Knob(
        name="threads",
        propose=_threads,
        words=_counted("thread"),
        lines=_written("torch.set_num_threads({value})" + _FIRST),
        changes_bits=True,
        part=_COMPUTING,
        setting="threads",
        after=("workers",),
    ),
    Knob(
        name="fused",
        propose=_fused,
        words=_named("fused"),
        lines=_written("optimizer = AdamW(..., fused={value})  # or another of torch's optimizers"),
        changes_bits=True,
        part=_OPTIMIZER,
    ),
    Knob(
        name="allocator",
        propose=_allocator,
        words=_named("keep freed memory"),
        lines=_written(
            "libc = ctypes.CDLL(None)  # first thing in the script, after `import ctypes`",
            "libc.mallopt(-1, 2**30)  # M_TRIM_THRESHOLD: keep up to 1 GiB free",
            "libc.mallopt(-3, 2**25)  # M_MMAP_THRESHOLD: keep all smaller blocks",
        ),
        changes_bits=False,
        part=_MODEL,
        setting="allocator",
    ),
    Knob(
        name="foreach",
        propose=_foreach,
        words=_named("foreach"),
        lines=_written("optimizer = AdamW(..., foreach={value})  # or another of torch's optimizers"),
        changes_bits=True,
        part=_OPTIMIZER,
    ),
    Knob(
        name="autocast",
        propose=_autocast,
        lines=_written(
            "with torch.autocast(x.device.type, dtype=torch.bfloat16):  # around forward pass and loss",
            "    loss = loss_of(model(x), y)",
            "loss.backward()  # outside the block",
        ),
        changes_bits=True,
        part=_MODEL,
        setting="precision",
    ),
    Knob(
        name="channels_last",
        propose=_channels_last,
        words=_named("channels last"),
        lines=_written(
            "model = model.to(memory_format=torch.channels_last)  # before you create the optimizer",
            "x = x.to(memory_format=torch.channels_last)  # images, before the forward pass",
        ),
        changes_bits=True,
        part=_MODEL,
    ),
    Knob(
        name="matmul_precision",
        propose=_matmul_precision,
        words=lambda value: _LEVEL_WORDS[value],
        lines=_written('torch.set_float32_matmul_precision("{value}")' + _FIRST),
        changes_bits=True,
        part=_MODEL,
    ),
    Knob(
        name="prefetch",
        propose=_prefetch,
        words=lambda value: f"{value} batches each",
        lines=_written("loader = DataLoader(..., prefetch_factor={value})"),
        changes_bits=False,
        part=_DATA,
        after=("workers",),
    ),
    Knob(
        name="persistent",
        propose=_persistent,
        words=_named("kept between epochs"),
        lines=_written("loader = DataLoader(..., persistent_workers={value})"),
        # torch draws a seed for workers whenever they start: all later draws are others.
        changes_bits=True,
        after=("workers",),
    ),
    Knob(
        name="pin_memory",
        propose=_pin_memory,
        words=_named("pinned"),
        lines=_written(
            "loader = DataLoader(..., pin_memory={value})",
            "x = x.to(device, non_blocking=True)  # for each tensor of a batch",
        ),
        changes_bits=False,
    ),
    Knob(
        name="cudnn_benchmark",
        propose=_cudnn_benchmark,
        words=_named("on"),
        lines=_written("torch.backends.cudnn.benchmark = {value}" + _FIRST),
        changes_bits=True,
        part=_MODEL,
    ),
    Knob(
        name="compile",
        propose=_compile,
        words=_named("compiled"),
        lines=_written(
            "model.compile()  # before training; state_dict names do not change",
            "# If model is a plain nn.Sequential, this does nothing: model = torch.compile(model)",
        ),
        changes_bits=True,
        part=_MODEL,
        setting="compile",
        home="truestep.tune.in_script.turning:compile_model",
    ),
)
KNOBS = {knob.name: knob for knob in _TABLE}
