"""Random tensor programs: whether anything that `explain` says about them is wrong.

Each program runs twice: bare, and explained. The oracle below knows nothing of explain's code: it looks at
storage pointers, and writes into each tensor to see which others change.

Usage: python benchmarks/explain_fuzz.py [--programs 2000] [--seed 0] [--json]. Exit 0 if nothing is wrong.
"""

import argparse
import itertools
import json
import random
import struct
import sys
import time
import warnings
from collections import Counter
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

import truestep

INPUTS = [
    "x = torch.arange(24.).view(2, 3, 4)",
    "x = torch.arange(24, dtype=torch.int64).view(4, 6)",
    "x = torch.arange(12).to(torch.complex64).view(3, 4)",
    "x = torch.arange(12, dtype=torch.bfloat16).view(3, 4).t()",
    "x = torch.arange(24.).view(2, 3, 4).requires_grad_()",
    "x = torch.arange(16.).view(4, 4) * torch.ones(1).requires_grad_()",
    "x = torch.arange(48.).view(2, 2, 3, 4).to(memory_format=torch.channels_last)",
    "x = torch.nn.Parameter(torch.arange(6.).view(2, 3))",
    "x = torch.arange(5).expand(3, 5)",
    "x = torch.arange(20.).as_strided((3, 4), (4, 2), 1)",
    "x = torch.tensor(3.5)",
    "x = torch.empty(0, 3)",
    "x = np.arange(12.).reshape(3, 4)",
    "x = np.arange(12, dtype=np.int32)[2:]",
]
MORE = [
    "y = x[0]",
    "y = x[..., 1:]",
    "y = x[..., ::2]",
    "y = x.T",
    "y = x.detach()",
    "y = x.data",
    "y = x.detach().numpy()",
    "y = torch.from_numpy(x)",
    "y = torch.from_numpy(x[1:])",
    "y = x.clone()",
    "y = torch.ones(4)",
    "y = x.view(-1)",
]
VIEWS = (
    "{a}.view(-1)",
    "{a}.view({shape})",
    "{a}[0]",
    "{a}[-1]",
    "{a}[torch.tensor(0)]",
    "{a}[..., 0]",
    "{a}[1:]",
    "{a}[:, ::2]",
    "{a}[:0]",
    "{a}[None]",
    "{a}[..., 1:3]",
    "{a}.T",
    "{a}.mT",
    "{a}.t()",
    "{a}.transpose(0, -1)",
    "{a}.permute(1, 0)",
    "{a}.movedim(0, -1)",
    "{a}.expand(3, *{a}.shape)",
    "{a}.unsqueeze(0)",
    "{a}.unsqueeze(-1)",
    "{a}.squeeze()",
    "{a}.squeeze(0)",
    "{a}.unfold(0, 2, 1)",
    "{a}.as_strided((2, 2), (2, 1))",
    "{a}.as_strided((2, 2), (1, 1), 1)",
    "{a}.diagonal()",
    "{a}.narrow(0, 0, 1)",
    "{a}.select(-1, 0)",
    "{a}.detach()",
    "{a}.data",
    "{a}.real",
    "{a}.imag",
    "{a}.conj()",
    "{a}.chunk(2)[0]",
    "{a}.chunk(2)[-1]",
    "{a}.split(1)[-1]",
    "{a}.unbind()[0]",
    "{a}.view_as({a})",
    "{a}.swapaxes(0, -1)",
    "{a}.flatten()",
    "{a}.H",
    "{a}.view(torch.uint8)",
    "{a}.mH",
    "torch.view_as_real({a})",
    "torch.broadcast_to({a}, (2, *{a}.shape))",
    "{a}.ravel()",
    "{a}.numpy()",
    "{a}.detach().numpy()",
    "torch.from_numpy({a})",
    "torch.as_tensor({a})",
    "np.asarray({a})",
    "{a}.reshape(-1)",
    "{a}.reshape({shape})",
    "{a}.contiguous()",
    "{a}.to({a}.dtype)",
    "{a}.to(torch.float32)",
    "{a}.resolve_conj()",
    "{a}.resolve_neg()",
    "{a}.requires_grad_()",
    "{a}.cpu()",
    "{a}.type_as({a})",
    "{b}",
    "{a}.float()",
    "{a}.positive()",
    "{a}.expand_as({b})",
    "{a}.reshape_as({b})",
    "torch.asarray({a})",
)
COPIES = (
    "{a}.clone()",
    "{a} + 1",
    "{a} * {b}",
    "{a} - {b}",
    "-{a}",
    "{a}.sum()",
    "{a}.sum(0)",
    "{a}.mean(-1)",
    "{a}.sum(-1, keepdim=True)",
    "{a}.amax(0, keepdim=True)",
    "{a}.min(0).values",
    "{a}.max(-1).indices",
    "{a}.std(0)",
    "{a}.norm(2, 0)",
    "{a}.prod(1)",
    "{a}.mean((0, 1))",
    "{a}.logsumexp(0)",
    "{a}.any(0)",
    "torch.cat([{a}, {b}])",
    "torch.cat([{a}, {a}], dim=-1)",
    "torch.stack([{a}, {b}])",
    "torch.vstack([{a}, {b}])",
    "torch.stack([{a}, {a}], dim=1)",
    "{a}.flip(0)",
    "{a}[[0, 0]]",
    "{a}[{a} > 2]",
    "{a}[torch.tensor([0])]",
    "{a}.repeat(2, *[1] * {a}.ndim)",
    "{a}.repeat_interleave(2, dim=0)",
    "{a}.roll(1, 0)",
    "{a} @ {b}",
    "torch.where({a} > 2, {a}, {b})",
    "{a} > {b}",
    "{a}.double()",
    "torch.tensor({a})",
    "{a}.abs()",
    "{a}.cumsum(0)",
    "{a}.softmax(-1)",
    "F.normalize({a}, dim=0)",
    "torch.rand_like({a})",
    "{a}.copy()",
    "np.add({a}, 1)",
    "torch.isnan({a})",
    "{a}.index_select(0, torch.tensor([0]))",
    "{a}.sort(0).values",
    "torch.zeros_like({a})",
    "{a} + torch.ones(1, 4)",
    "{a}.unsqueeze(-1) * {b}",
    "torch.arange(3.).view(3, 1) - {a}",
    "{a}[:, None] == {b}",
    "torch.maximum({a}, {b})",
    "{a}.exp()",
    "{a}.sigmoid()",
    "torch.atleast_2d({a})",
    "{a}.tile(2)",
)
WRITES = (
    "{a}.add_(1)",
    "{a}.mul_(2)",
    "{a}[0] = 7",
    "{a}[..., 0] = 3",
    "{a} += 1",
    "{a} *= 2",
    "{a}.zero_()",
    "{a}.copy_({b})",
    "{a}.fill_(5)",
    "{a}.detach().add_(1)",
    "{a}.data.mul_(3)",
    "{a}[1:] += 1",
    "{a}.neg_()",
    "{a}.t_()",
    "{a}.unsqueeze_(0)",
    "{a}.squeeze_()",
    "{a}.relu_()",
    "torch.add({a}, 1, out={a})",
)
SHAPES = ["-1, 2", "2, -1", "3, -1", "-1, 4", "2, 2, -1", "-1, 1", "6, 4", "4, 3"]
NAMESPACE = {"torch": torch, "np": np, "F": F, "nn": torch.nn}


# The oracle: pointers, and writing


def is_leaf(tensor: torch.Tensor) -> bool:
    try:
        return tensor.is_leaf
    except RuntimeError:  # a piece of split() or unbind() whose base was written to
        return False


def span(thing: Any) -> tuple[int, int]:
    if isinstance(thing, torch.Tensor):
        storage = thing.untyped_storage()
        return storage.data_ptr(), storage.data_ptr() + storage.nbytes()
    while thing.base is not None and not isinstance(thing.base, (torch.Tensor, bytes, bytearray, memoryview)):
        thing = thing.base
    if isinstance(thing.base, torch.Tensor):
        return span(thing.base)
    bounds: tuple[int, int] = np.lib.array_utils.byte_bounds(thing)
    return bounds


def has_memory(thing: Any) -> bool:
    """Whether there is any byte whose address could be compared."""
    start, end = span(thing)
    return start < end


def in_one_memory(one: Any, two: Any) -> bool:
    (start, end), (other_start, other_end) = span(one), span(two)
    return max(start, other_start) < min(end, other_end)


def pattern(dtype: Any, *, is_second: bool) -> Any:
    """Return a value none of whose bytes equals that of the other one."""
    if dtype in (torch.bool, np.dtype(bool)):
        return is_second
    raw = (0x3FA5C3E1B2D4F687 ^ (2**64 - 1 if is_second else 0)).to_bytes(8, "big")
    name = str(dtype).removeprefix("torch.")
    if name.startswith("complex"):
        width = int(name[7:]) // 16
        part = struct.unpack(">f" if width == 4 else ">d", raw[:width])[0]
        return complex(part, part)
    if name.startswith(("float", "bfloat")):
        width = min(int(name.split("float")[1]) // 8, 8)
        if name == "bfloat16":
            return struct.unpack(">f", raw[:2] + b"\0\0")[0]
        return struct.unpack({2: ">e", 4: ">f", 8: ">d"}[width], raw[:width])[0]
    width = np.dtype(name).itemsize
    return int.from_bytes(raw[:width], "big", signed=name.startswith("int"))


def write(thing: Any, *, is_second: bool) -> None:
    value = pattern(thing.dtype, is_second=is_second)
    if isinstance(thing, np.ndarray):
        thing[...] = value
        return
    thing = thing.detach()
    for axis in reversed(range(thing.ndim)):
        if thing.stride(axis) == 0 and thing.shape[axis] > 1:
            thing = thing.select(axis, 0)
    thing.fill_(value)


def seen(thing: Any) -> bytes:
    if isinstance(thing, np.ndarray):
        return thing.tobytes()
    if thing.dtype is torch.bool:
        thing = thing.view(torch.uint8)  # every other byte than 0 would be copied as True
    flat = thing.detach().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format).view(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def writing_changes(one: Any, other: Any) -> bool:
    before = seen(other)
    for is_second in (False, True):
        write(one, is_second=is_second)
        if seen(other) != before:
            return True
    return False


# Making programs


class Program:
    """A recipe for the inputs, and statements that were seen to run."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.recipe = [self.rng.choice(INPUTS)]
        self.statements: list[str] = []
        self.kinds: list[str] = []
        world = self.world()
        if self.rng.random() < 0.6:
            self._try(world, self.rng.choice(MORE), self.recipe)
        self._grow(world, self.rng.randint(1, 6))

    def world(self) -> dict[str, Any]:
        world = dict(NAMESPACE)
        for line in self.recipe:
            exec(line, world)
        return world

    def inputs(self, world: dict[str, Any]) -> dict[str, Any]:
        return {name: world[name] for name in ("x", "y") if name in world}

    def _grow(self, world: dict[str, Any], length: int) -> None:
        for _ in range(40):
            if len(self.statements) == length:
                return
            kind = self.rng.choices(["view", "copy", "write"], [5, 3, 2])[0]
            template = self.rng.choice({"view": VIEWS, "copy": COPIES, "write": WRITES}[kind])
            names = [name for name, value in world.items() if isinstance(value, (torch.Tensor, np.ndarray))]
            text = template.format(
                a=self.rng.choice(names), b=self.rng.choice(names), shape=self.rng.choice(SHAPES)
            )
            if kind != "write":
                text = f"t{len(self.statements)} = {text}"
            if self._try(world, text, self.statements):
                self.kinds.append(kind)

    def _try(self, world: dict[str, Any], text: str, into: list[str]) -> bool:
        trial = dict(world)
        try:
            exec(text, trial)
        except (RuntimeError, ValueError, TypeError, AttributeError, IndexError, NotImplementedError):
            return False
        made = [value for name, value in trial.items() if world.get(name) is not value and name[0] in "txy"]
        things = [value for value in made if isinstance(value, (torch.Tensor, np.ndarray))]
        if len(things) != len(made) or any(self._is_big(thing) for thing in things):
            return False
        world.update(trial)
        into.append(text)
        return True

    @staticmethod
    def _is_big(thing: Any) -> bool:
        return (thing.numel() if isinstance(thing, torch.Tensor) else thing.size) > 3000


# Checking what was said


class Check:
    """Compares what explain said with what is so; counts the statements and keeps the wrong ones."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.at = 0

    def claim(self, kind: str, said: Any, found: Any, *, about: str) -> None:
        self.counts[kind] += 1
        if said != found:
            code = "; ".join([*self.program.recipe, "|", *self.program.statements])
            self.wrong.append(f"{kind} of {about}: said {said}, found {found} in: {code}")

    def run(self) -> None:
        given = self.program.world()
        inputs = self.program.inputs(given)
        before = {name: (seen(thing), getattr(thing, "_version", 0)) for name, thing in inputs.items()}
        state = torch.get_rng_state()
        told = truestep.explain("; ".join(self.program.statements), **inputs)
        after = {name: (seen(thing), getattr(thing, "_version", 0)) for name, thing in inputs.items()}
        self.claim("given is unchanged", after, before, about="inputs")
        self.claim("generator", True, torch.equal(state, torch.get_rng_state()), about="torch")
        world = self.program.world()
        self._steps(told, world)
        self._tensors(told, world)
        self._sharings(told, world)

    def _steps(self, told: Any, world: dict[str, Any]) -> None:
        for text, kind in zip(self.program.statements, self.program.kinds, strict=True):
            things = {
                name: value for name, value in world.items() if isinstance(value, (torch.Tensor, np.ndarray))
            }
            contents = {name: seen(value) for name, value in things.items()}
            exec(text, world)
            name = text.split(" = ")[0]
            if kind == "write":
                first = {id(value): key for key, value in reversed(things.items())}
                changed = {first[id(value)] for key, value in things.items() if seen(value) != contents[key]}
                self._written(told, text, changed)
            else:
                self._made(told, text, world[name], things)

    def _made(self, told: Any, text: str, value: Any, things: dict[str, Any]) -> None:
        name = text.split(" = ", maxsplit=1)[0]
        steps = [step for step in told.operations if step.code.startswith(f"{name} = ")]
        steps = steps or [step for step in told.operations if any(out.name == name for out in step.outputs)]
        if not steps:
            # Nothing was told: right only if no new tensor came about.
            self.claim("silence", True, any(value is thing for thing in things.values()), about=text)
            return
        step = steps[0]
        if any(value is thing for thing in things.values()):
            found = "same"
        else:
            is_view = any(in_one_memory(value, thing) for thing in things.values())
            found = "view" if is_view else "copy or new"
        if has_memory(value) or found == "same":
            said = "copy or new" if step.verdict in ("copy", "new") else step.verdict
            self.claim("view or copy", said, found, about=text)
        self.claim(
            "shape out", tuple(value.shape) in [facts.shape for facts in step.outputs], True, about=text
        )
        self._shapes(step, text)

    def _shapes(self, step: Any, text: str) -> None:
        shape = step.outputs[0].shape
        if step.reduction is not None:
            axes, is_kept = step.reduction.axes, step.reduction.keepdim
            sizes = [
                1 if axis in axes else size
                for axis, size in enumerate(step.inputs[0].shape)
                if is_kept or axis not in axes
            ]
            self.claim("reduction", tuple(sizes), shape, about=text)
        if step.broadcast is not None:
            self.claim("broadcast", step.broadcast.shape, shape, about=text)

    def _written(self, told: Any, text: str, named: set[str]) -> None:
        rest = told.operations[self.at :]
        steps = [step for step in rest if step.code == text] or [
            step for step in rest if step.verdict == "in place"
        ]
        self.claim("in place", [step.verdict for step in steps[:1]], ["in place"], about=text)
        if not steps:
            return
        self.at = told.operations.index(steps[0]) + 1
        notes = [note for note in steps[0].notes if note.startswith("this also changes ")]
        listed = ", ".join(note.removeprefix("this also changes ").split(":")[0] for note in notes)
        said = {steps[0].of, *listed.replace(" and ", ", ").split(", ")}
        self.claim("who is changed", named - said, set(), about=text)

    def _tensors(self, told: Any, world: dict[str, Any]) -> None:
        for facts in told.tensors:
            if facts.name not in world:
                continue
            thing = world[facts.name]
            self.claim("shape", facts.shape, tuple(thing.shape), about=facts.name)
            if isinstance(thing, torch.Tensor):
                said = (facts.stride, facts.offset, facts.is_contiguous, facts.requires_grad, facts.is_conj)
                found = (thing.stride(), thing.storage_offset(), thing.is_contiguous())
                found += (thing.requires_grad, thing.is_conj())
                self.claim("layout", said, found, about=facts.name)
                self.claim("leaf", facts.is_leaf, is_leaf(thing), about=facts.name)
                self.claim(
                    "storage bytes", facts.storage_bytes, thing.untyped_storage().nbytes(), about=facts.name
                )
            else:
                found = tuple(step // thing.itemsize for step in thing.strides)
                self.claim(
                    "layout", (facts.stride, facts.is_contiguous), (found, thing.flags.c_contiguous), about=""
                )

    def _sharings(self, told: Any, world: dict[str, Any]) -> None:
        said = {frozenset((item.first, item.second)): item for item in told.sharings}
        names = [facts.name for facts in told.tensors if facts.name in world]
        for one, two in itertools.combinations(names, 2):
            if world[one] is world[two] or not (has_memory(world[one]) and has_memory(world[two])):
                continue
            item = said.get(frozenset((one, two)))
            about = f"{one} and {two}"
            self.claim("same memory", item is not None, in_one_memory(world[one], world[two]), about=about)
            try:
                found = writing_changes(world[one], world[two])
            except (ValueError, RuntimeError):  # read-only, or no single place to write to
                self.counts["not writable"] += 1
                continue
            self.claim("overlap", item is not None and item.is_overlapping, found, about=about)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--programs", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    start = time.perf_counter()
    counts: Counter[str] = Counter()
    lengths: Counter[int] = Counter()
    wrong: list[str] = []
    for seed in range(options.seed, options.seed + options.programs):
        check = Check(Program(seed))
        check.run()
        counts += check.counts
        lengths[len(check.program.statements)] += 1
        wrong += [f"seed {seed}: {text}" for text in check.wrong]
    took = time.perf_counter() - start
    if options.json:
        fields = {
            "programs": options.programs,
            "seed": options.seed,
            "statements": dict(counts),
            "wrong": wrong,
        }
        print(json.dumps(fields, indent=2))
    else:
        print(f"{options.programs} programs, seeds from {options.seed}, {took:.0f} s")
        print("lengths  " + ", ".join(f"{length}: {num}" for length, num in sorted(lengths.items())))
        for kind, num in counts.most_common():
            print(f"{num:8,}  {kind}")
        print("\n".join(wrong[:20]) or "nothing wrong")
        print(f"{sum(counts.values()):,} statements checked, {len(wrong)} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
