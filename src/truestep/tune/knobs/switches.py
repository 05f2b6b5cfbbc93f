"""Knobs of torch and the system: threads, precision of products, cuDNN's benchmark, glibc's allocator."""

import platform
from collections.abc import Mapping
from typing import Any

import torch

from truestep.base.memory import keep_freed
from truestep.tune.knob import Choice, Knob, ScriptFacts, Skip
from truestep.tune.knobs._arguments import fix_argument
from truestep.tune.knobs._worth import too_small, without_gpu
from truestep.watch.script.tape import Tape

_LEVELS = ("highest", "high", "medium")
_LEVEL_WORDS = {"high": "high (TF32)", "medium": "medium (bf16)"}


def propose_threads(facts: ScriptFacts, chosen: Mapping[str, Any]) -> list[Choice] | Skip:
    """Propose one, half the cores, and all, other than now."""
    if facts.device != "cpu":
        return Skip(reason="the model is on the GPU, so CPU threads do not speed up a step.")
    skip = too_small(
        facts, "forward", "backward", "optimizer", "other", what="computing", best="a CPU without cost"
    )
    if skip is not None:
        return skip
    numbers = {1, max(1, facts.cores // 2), facts.cores} - {chosen.get("threads", facts.threads)}
    if not numbers:
        return Skip(reason="the machine has one core, and the script uses one thread.")
    return [Choice(value=number, words=_threads_words(number)) for number in sorted(numbers)]


def _threads_words(number: int) -> str:
    return "1 thread" if number == 1 else f"{number} threads"


def threads(value: int, tape: Tape) -> None:  # noqa: ARG001
    """Set it, whatever the script sets later."""
    fix_argument("torch.set_num_threads", value=value)


def propose_matmul_precision(facts: ScriptFacts, chosen: Mapping[str, Any]) -> list[Choice] | Skip:
    """Propose the levels below the script's own that do something on this device."""
    if chosen.get("autocast") or facts.is_autocast:
        return Skip(reason="autocast already runs matrix products in 16 bits.")
    if facts.models and not any(model["has_matmul"] for model in facts.models):
        return Skip(reason="the model has no matrix product.")
    if facts.matmul_precision not in _LEVELS:
        return Skip(reason="the script sets it by backend (fp32_precision).")
    lower = _LEVELS[_LEVELS.index(facts.matmul_precision) + 1 :]
    levels = [level for level in lower if facts.device == "cuda" or _works_on_cpu(level)]
    if not lower:
        return Skip(reason=f"the script already sets it to {facts.matmul_precision}.")
    if not levels:
        return Skip(reason="this CPU has no instructions for float32 products of lower precision.")
    skip = too_small(facts, "forward", "backward", what="the model", best="a model without cost")
    return skip or [Choice(value=level, words=_LEVEL_WORDS[level]) for level in levels]


def _works_on_cpu(level: str) -> bool:
    """Whether oneDNN would round at this level here.

    "medium" takes bfloat16 for matrix products (pytorch#125386), "high" TensorFloat32, which needs AMX for
    floats of 16 bits. Without them both are what "highest" is. Convolutions are not touched.
    """
    if level == "high":
        return _has("_is_amx_fp16_supported")
    return _has("_is_avx512_bf16_supported") or _has("_is_amx_tile_supported")


def _has(question: str) -> bool:
    ask = getattr(torch.cpu, question, None)  # private, and not in every version
    return bool(ask is not None and ask())


def matmul_precision(value: str, tape: Tape) -> None:  # noqa: ARG001
    """Set it, whatever the script sets later."""
    fix_argument("torch.set_float32_matmul_precision", value=value)


def propose_cudnn_benchmark(facts: ScriptFacts, chosen: Mapping[str, Any]) -> list[Choice] | Skip:  # noqa: ARG001
    """Propose it for convolutions on a GPU."""
    skip = without_gpu(facts, "cuDNN runs convolutions on NVIDIA GPUs")
    if skip is not None:
        return skip
    if facts.models and not any(model["has_conv"] for model in facts.models):
        return Skip(reason="the model has no convolution.")
    skip = too_small(facts, "forward", "backward", what="the model", best="a model without cost")
    return skip or [Choice(value=True, words="on")]


def cudnn_benchmark(value: bool, tape: Tape) -> None:
    """Turn it on as each step begins: an assignment of the script's own cannot be caught."""

    def turn(*_: Any) -> None:
        torch.backends.cudnn.benchmark = value

    turn()
    tape.listen(forward_begins=turn)


def propose_allocator(facts: ScriptFacts, chosen: Mapping[str, Any]) -> list[Choice] | Skip:  # noqa: ARG001
    """Propose to keep it, where glibc allocates what is computed with."""
    if platform.libc_ver()[0] != "glibc":
        return Skip(reason="the process does not use glibc's allocator.")
    if facts.device != "cpu":
        return Skip(reason="the model is on the GPU, where torch keeps freed memory anyway.")
    skip = too_small(facts, "forward", "backward", what="the model", best="free memory")
    return skip or [Choice(value="keep", words="keep freed memory")]


def allocator(value: str, tape: Tape) -> None:  # noqa: ARG001
    """Tell glibc."""
    keep_freed()


KNOBS = (
    Knob(
        name="threads",
        priority=20,
        about="Uses more or fewer cores per operation. Small models are fastest with one.",
        propose=propose_threads,
        lines=("torch.set_num_threads({value})  # first thing after the imports",),
        changes_bits=True,
        after=("workers",),
        setting=lambda value: ("threads", value),
        apply=threads,
    ),
    Knob(
        name="matmul_precision",
        priority=80,
        about="Rounds inside float32 matrix products: to TF32 on a GPU, to bfloat16 (medium) on some CPUs.",
        propose=propose_matmul_precision,
        lines=('torch.set_float32_matmul_precision("{value}")  # first thing after the imports',),
        changes_bits=True,
        apply=matmul_precision,
    ),
    Knob(
        name="cudnn_benchmark",
        priority=130,
        about="Lets cuDNN time its kernels for each shape. Pays for convolutions with constant shapes.",
        propose=propose_cudnn_benchmark,
        lines=("torch.backends.cudnn.benchmark = {value}  # first thing after the imports",),
        changes_bits=True,
        apply=cudnn_benchmark,
    ),
    Knob(
        name="allocator",
        priority=40,
        about="Keeps freed memory for the next step, which otherwise may request thousands of pages again.",
        propose=propose_allocator,
        lines=(
            "libc = ctypes.CDLL(None)  # first thing in the script, after `import ctypes`",
            "libc.mallopt(-1, 2**30)  # M_TRIM_THRESHOLD: keep up to 1 GiB free",
            "libc.mallopt(-3, 2**25)  # M_MMAP_THRESHOLD: keep all smaller blocks",
        ),
        changes_bits=False,
        setting=lambda value: ("allocator", value),
        apply=allocator,
    ),
)
