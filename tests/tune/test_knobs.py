"""Each knob does in a real script what its name says, and nothing else; where it cannot pay it says why."""

import ast
import inspect
import json
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from truestep import watch
from truestep.tune.in_script import inside
from truestep.tune.knob import ScriptFacts
from truestep.tune.knobs import KNOBS
from truestep.tune.search.race import Contender

SCRIPTS = Path(__file__).parent / "scripts"
DIGESTS = tuple(name for name in watch.DIGESTS if name != "generators")  # that of `random` is not seeded
ORDER = tuple(KNOBS)
KEEPING = {
    "prefetch": 4,
    "pin_memory": True,
    "allocator": "keep",
}
"""What keeps every bit, with a value each."""
CHANGING = {
    "fused": True,
    "threads": 2,
    "matmul_precision": "medium",
    "autocast": "bf16",
    "persistent": True,
}


@dataclass(frozen=True, kw_only=True)
class Ran:
    told: list[dict[str, Any]]
    process: watch.Process


def ran(script: str, *arguments: str, workers: int | None = None, **values: Any) -> Ran:
    """Run a script with some knobs turned; the same is run once."""
    return _ran(script, arguments, workers, json.dumps(values))


@cache
def _ran(script: str, arguments: tuple[str, ...], workers: int | None, values: str) -> Ran:
    settings = tuple((KNOBS[name].turned_by, value) for name, value in json.loads(values).items())
    plan = watch.Plan(settings=settings, workers=workers, digests=DIGESTS)
    # What is freed goes back at once: else the peak of a process is not that of its tensors.
    environment = {"MALLOC_MMAP_THRESHOLD_": "65536"}
    with TemporaryDirectory() as folder:
        words = watch.command(
            SCRIPTS / script, arguments, plan=plan, folder=Path(folder), environment=environment
        )
        done = subprocess.run(
            words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, timeout=280, text=True
        )
        output = done.stdout
        assert done.returncode == 0, output
        (process,) = [process for process in watch.read(Path(folder)) if process.num_steps or process.ended]
    assert process.troubles == []
    told = [json.loads(line[5:]) for line in output.splitlines() if line.startswith("told ")]
    return Ran(told=told, process=process)


FACTS = ScriptFacts(
    cores=4,
    device="cpu",
    threads=4,
    step_s=0.1,
    loaders=(
        {
            "class": "DataLoader",
            "workers": 0,
            "pin_memory": False,
            "persistent": False,
            "prefetch": None,
            "length": 10,
            "is_training": True,
            "is_ours": False,
        },
    ),
    optimizers=(
        {
            "class": "AdamW",
            "fused": None,
            "foreach": None,
            "can_fuse": True,
            "can_foreach": True,
        },
    ),
    models=(
        {
            "class": "Net",
            "has_conv": True,
            "has_conv2d": True,
            "has_matmul": True,
            "has_sparse": False,
            "is_compiled": False,
            "dtype": "float32",
        },
    ),
)
"""Of a script for which every knob is worth a try, where the device has it."""
IDLE = {
    "data": 0.004,
    "forward": 0.004,
    "backward": 0.004,
    "optimizer": 0.004,
    "other": 0.984,
}


def of(part: str, **changed: Any) -> ScriptFacts:
    """Return the facts with one loader, optimizer or model changed."""
    (item,) = getattr(FACTS, part)
    return replace(FACTS, **{part: ({**item, **changed},)})


def proposed(name: str, facts: ScriptFacts, **chosen: Any) -> list[Any] | str:
    """Return the values that a knob proposes, or its reason to propose none."""
    return KNOBS[name].offer(facts, chosen)


def test_compiling_comes_after_what_is_cheap() -> None:
    assert ORDER[:2] == ("workers", "threads") and ORDER.index("compile") > ORDER.index("cudnn_benchmark")


@pytest.mark.parametrize("name", ORDER)
def test_a_knob_is_turned_in_one_way(name: str) -> None:
    module, _, function = KNOBS[name].turned_by.partition(":")
    turn = getattr(import_module(module), function, None)
    assert (turn is None) == (KNOBS[name].plan is not None)
    assert turn is None or len(inspect.signature(turn).parameters) == 2


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("name", ORDER)
def test_what_is_proposed_is_plain_and_can_be_pasted(name: str, device: str) -> None:
    knob = KNOBS[name]
    found = knob.offer(replace(FACTS, device=device), {"workers": 2})
    if isinstance(found, str):
        assert (name, device) in {
            ("pin_memory", "cpu"),
            ("cudnn_benchmark", "cpu"),
            ("threads", "cuda"),
            ("foreach", "cuda"),
            ("allocator", "cuda"),
            ("matmul_precision", "cpu"),  # on processors without the instructions
        }
        return
    assert found
    for value in found:
        assert knob.words(value) and json.loads(json.dumps(value)) == value
        ast.parse("\n".join(knob.lines(value)))
        if knob.plan is not None:
            watch.Plan(**knob.plan(value))


SKIPPED: list[tuple[str, ScriptFacts, dict[str, Any], str]] = [
    (
        "workers",
        replace(FACTS, shares=IDLE),
        {},
        "waiting for data takes 0.4% of a step, so even without it 2 % would not be gained",
    ),
    ("workers", replace(FACTS, loaders=()), {}, "does not use a DataLoader"),
    ("prefetch", FACTS, {}, "the loader has none"),
    ("prefetch", of("loaders", workers=2, prefetch=8), {}, "already keeps 8 batches ready"),
    ("prefetch", replace(of("loaders", workers=2), shares=IDLE), {}, "waiting for data takes 0.4%"),
    ("prefetch", of("loaders", workers=2, **{"class": "StatefulDataLoader"}), {}, "not torch's DataLoader"),
    ("prefetch", of("loaders", workers=2, is_ours=True), {}, "not torch's DataLoader"),
    ("persistent", of("loaders", workers=2, is_ours=True), {}, "not torch's DataLoader"),
    ("persistent", FACTS, {}, "the loader has no workers"),
    ("persistent", of("loaders", workers=2, persistent=True), {}, "already"),
    ("persistent", of("loaders", length=1000), {"workers": 2}, "an epoch takes about 100 s"),
    ("persistent", of("loaders", length=None), {"workers": 2}, "workers start once"),
    ("pin_memory", FACTS, {}, "the model is on the CPU"),
    ("pin_memory", replace(of("loaders", pin_memory=True), device="cuda"), {}, "already"),
    (
        "pin_memory",
        replace(of("loaders", is_ours=True), device="cuda"),
        {},
        "does not create a DataLoader of torch",
    ),
    ("threads", replace(FACTS, device="cuda"), {}, "on the GPU"),
    ("threads", replace(FACTS, cores=1, threads=1), {}, "one core"),
    ("autocast", replace(FACTS, is_autocast=True), {}, "already"),
    ("autocast", of("models", dtype="bfloat16"), {}, "is in bfloat16"),
    ("autocast", of("models", has_matmul=False, has_conv=False), {}, "no matrix product"),
    ("autocast", replace(FACTS, shares=IDLE), {}, "the model takes 0.8% of a step"),
    ("fused", of("optimizers", can_fuse=False, **{"class": "LBFGS"}), {}, "LBFGS has no fused form"),
    ("fused", of("optimizers", can_fuse=True, **{"class": "Mine"}), {}, "Mine has no fused form"),
    ("fused", of("optimizers", fused=True), {}, "already"),
    ("fused", of("models", has_sparse=True), {}, "sparse"),
    ("fused", replace(FACTS, shares=IDLE), {}, "the optimizer takes 0.4% of a step"),
    ("foreach", FACTS, {"fused": True}, "is fused"),
    ("foreach", of("optimizers", can_foreach=False, **{"class": "LBFGS"}), {}, "no foreach form"),
    ("foreach", of("optimizers", foreach=True), {}, "already"),
    ("allocator", replace(FACTS, device="cuda"), {}, "on the GPU"),
    ("allocator", replace(FACTS, shares=IDLE), {}, "the model takes 0.8%"),
    ("channels_last", of("models", has_conv2d=False), {}, "no Conv2d"),
    ("matmul_precision", FACTS, {"autocast": "bf16"}, "already runs matrix products in 16 bits"),
    ("matmul_precision", replace(FACTS, matmul_precision="medium"), {}, "already"),
    ("matmul_precision", of("models", has_matmul=False), {}, "no matrix product"),
    ("matmul_precision", replace(FACTS, matmul_precision="CUDA ieee, CPU tf32"), {}, "sets it by backend"),
    ("compile", of("models", is_compiled=True), {}, "already"),
    ("compile", replace(FACTS, shares=IDLE), {}, "the model takes 0.8%"),
    ("cudnn_benchmark", FACTS, {}, "the model is on the CPU"),
    ("cudnn_benchmark", replace(of("models", has_conv=False), device="cuda"), {}, "no convolution"),
]


@pytest.mark.parametrize(
    ("name", "facts", "chosen", "words"), SKIPPED, ids=[f"{name}: {words}" for name, *_, words in SKIPPED]
)
def test_where_it_cannot_pay_it_says_why(
    name: str, facts: ScriptFacts, chosen: dict[str, Any], words: str
) -> None:
    reason = proposed(name, facts, **chosen)
    assert isinstance(reason, str) and words in reason
    assert reason.endswith(".") and len(reason) < 150


def test_every_knob_has_a_reason_that_is_tested() -> None:
    assert {name for name, *_ in SKIPPED} == set(ORDER)


def test_values_follow_the_machine_and_what_is_chosen() -> None:
    assert proposed("workers", FACTS) == [1, 2, 4, 8]
    assert proposed("workers", of("loaders", workers=2)) == [0, 1, 4, 8]
    assert proposed("workers", replace(FACTS, loaders=(), shares=IDLE, uses_run=True)) == [1, 2, 4, 8]
    assert proposed("prefetch", replace(FACTS, shares=IDLE), workers=2) == [4, 8]
    assert proposed("threads", FACTS) == [1, 2]
    assert proposed("threads", replace(FACTS, threads=1)) == [2, 4]
    assert proposed("prefetch", FACTS, workers=2) == [4, 8]
    assert proposed("persistent", FACTS, workers=2) == [True]


def test_a_large_share_is_worth_a_try() -> None:
    shares = {"data": 0.5, "forward": 0.1, "backward": 0.1, "optimizer": 0.2, "other": 0.1}
    for name in set(ORDER) - {"pin_memory", "cudnn_benchmark", "matmul_precision"}:
        found = proposed(name, replace(FACTS, shares=shares), workers=2)
        assert isinstance(found, list), name


@pytest.mark.slow
def test_bits_are_kept_by_knobs_that_say_so() -> None:
    assert set(KEEPING) == {name for name, knob in KNOBS.items() if not knob.changes_bits}
    start, turned = ran("blocks.py", workers=2), ran("blocks.py", workers=2, **KEEPING)
    assert len(start.process.updates) == 12
    assert [update.chain for update in turned.process.updates] == [
        update.chain for update in start.process.updates
    ]
    assert turned.told[0]["scores"] == start.told[0]["scores"]


@pytest.mark.slow
def test_knobs_that_keep_bits_are_turned() -> None:
    (start,), (turned,) = ran("blocks.py", workers=2).told, ran("blocks.py", workers=2, **KEEPING).told
    assert start["prefetch"] == [2, 2] and turned["prefetch"] == [4, 4]


@pytest.mark.slow
def test_knobs_that_change_bits_are_turned_whatever_the_script_sets() -> None:
    (told,) = ran("blocks.py", workers=1, **CHANGING).told
    assert told["workers"] == [1, 1] and told["persistent"] == [True, True]
    assert told["fused"] == [True]
    assert told["threads"] == 2 and told["matmul_precision"] == "medium"
    assert told["probes"][0]["dtypes"] == ["torch.bfloat16"] and told["outputs"] == ["torch.float32"]


@pytest.mark.slow
def test_updates_are_made_for_all_tensors_at_once() -> None:
    assert ran("blocks.py", foreach=True).told[0]["foreach"] == [True]


@pytest.mark.slow
def test_models_stay_whole() -> None:
    (start,), (turned,) = ran("blocks.py", workers=2).told, ran("blocks.py", workers=1, **CHANGING).told
    assert turned["names"] == start["names"]
    assert turned["is_whole"] == [True]


MAPPED = """
import ctypes, sys, torch

class Info(ctypes.Structure):
    _fields_ = [(f"number_{place}", ctypes.c_size_t) for place in range(10)]

exec(sys.argv[1])
ask = ctypes.CDLL(None).mallinfo2
ask.restype = Info
before = ask().number_4  # bytes that are mapped by themselves, and given back as soon as they are free
kept = torch.ones(7_500_000)
print(ask().number_4 - before)
"""


@pytest.mark.slow
def test_freed_memory_is_kept_by_the_lines_that_are_given() -> None:
    lines = "\n".join(KNOBS["allocator"].lines("keep"))
    start, kept = (
        int(subprocess.check_output([sys.executable, "-c", MAPPED, words])) for words in ("pass", lines)
    )
    assert start >= 30_000_000 and kept == 0


@pytest.mark.slow
def test_images_and_weights_are_laid_out() -> None:
    (told,) = ran("images.py", channels_last=True, fused=True).told
    assert told["is_last"] and [probe["last_inputs"] for probe in told["probes"]] == [[True], [True]]
    assert told["fused"] == [True] and told["foreach"] == [None], "which excludes the script's own foreach"
    assert told["is_whole"] == [True]


@pytest.mark.slow
def test_trainings_of_every_shape_run_with_all_of_them() -> None:
    values = {**CHANGING, **KEEPING, "channels_last": True}
    start, turned = ran("odd_ones.py"), ran("odd_ones.py", **values)
    assert len(turned.told) == len(start.told) == 4
    for told in turned.told:
        assert told["fused"] == [True, True]
        assert told["probes"][0]["dtypes"] == ["torch.bfloat16"], "each model that is made is met"
        assert told["is_whole"] == [True] * 3
    assert turned.told[0]["losses"] == pytest.approx(start.told[0]["losses"], rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("framework", ["lightning", "accelerate", "trainer", "run"])
def test_frameworks_run_with_all_of_them(framework: str) -> None:
    values = {**CHANGING, **KEEPING, "channels_last": True, "threads": 1}
    (told,) = ran("frameworks.py", framework, mkdtemp(), workers=2, **values).told
    assert set(told["fused"]) == {True}
    assert told["threads"] == 1
    (probe,) = told["probes"]
    assert probe["dtypes"] == ["torch.bfloat16"]
    if framework == "run":
        assert told["loader"] == 2
    else:
        assert set(told["workers"]) == {2} and set(told["prefetch"]) == {4}
    assert told["is_whole"] == [True]


@pytest.mark.slow
def test_each_model_is_compiled() -> None:
    (told,) = ran("plain_stack.py", compile=True).told
    assert told["graphs"] == 2, "the whole model is one, and one more for the smaller batch at the end"
    assert told["probes"][0]["num_passes"] == 0, "no pass outside of them"
    assert told["names"] == [["0.weight", "0.bias", "2.weight", "2.bias"]]
    assert told["is_whole"] == [True]


def seen(script: str, *arguments: str) -> dict[str, Any]:
    """Return what is known of a script after its first step."""
    path = str(SCRIPTS / script)
    with Contender(watch.Script(path=path, arguments=arguments), {}, knobs=KNOBS) as runner:
        runner.start()
        assert runner.first(until_s=time.monotonic() + 240) is not None, runner.tail
        return dict(runner.facts)


@pytest.mark.slow
def test_facts_are_seen_in_the_first_step() -> None:
    facts = seen("blocks.py")
    assert not facts["is_autocast"]
    assert [loader["is_training"] for loader in facts["loaders"]] == [False, True]
    (model,) = facts["models"]
    assert model["has_matmul"] and not model["has_conv2d"]
    known = ScriptFacts(cores=4, step_s=0.1, **facts)
    assert proposed("workers", known) == [1, 2, 4, 8]
    assert proposed("channels_last", known) == "the model has no Conv2d."


@pytest.mark.slow
def test_autocast_inside_of_the_model_is_seen() -> None:
    facts = seen("images.py", "autocast")
    assert facts["is_autocast"]
    assert proposed("autocast", ScriptFacts(cores=4, step_s=0.1, **facts)) == (
        "the script already uses autocast."
    )


def test_a_model_in_the_place_of_another_is_met_too() -> None:
    acts: dict[str, Any] = {}
    tape: Any = SimpleNamespace(listen=acts.update)
    met: list[int] = []
    inside.on_model(tape, lambda module: met.append(id(module)))
    meet = acts["forward_begins"]
    for _ in range(20):
        model = nn.Linear(2, 2).eval()
        meet(model, (), {})
        meet(model, (), {})
        del model
    assert len(met) == 20 and len(set(met)) < 20
    with torch.no_grad():
        meet(nn.Linear(2, 2), (), {})
    meet(nn.ReLU(), (), {})
    meet(nn.Linear(2, 2).requires_grad_(False), (), {})
    assert len(met) == 20, "nothing of these is trained"


BY_BACKEND = """
import torch
from types import SimpleNamespace

torch.backends.fp32_precision = "tf32"
torch.backends.cuda.matmul.fp32_precision = "ieee"
from truestep.run.train.fingerprint import fingerprint
from truestep.tune.in_script.facts_so_far import FactsSoFar

facts = FactsSoFar(SimpleNamespace(listen=dict, under_way=None, window=None)).facts()
print(facts["matmul_precision"], fingerprint(torch.device("cpu"))["matmul_precision"], sep="\\n")
"""


def test_a_precision_that_the_script_sets_by_backend_is_told_and_nothing_fails() -> None:
    told = subprocess.check_output([sys.executable, "-c", BY_BACKEND], text=True, timeout=120)
    assert told == 2 * "CUDA ieee, CPU tf32\n"
