"""The look: every operation with its caller, its kin and its digests, and not a bit of the script changed."""

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.watch.watching import SCRIPTS, marked, run, run_bare, run_watched
from truestep import watch
from truestep.watch import Operation, values_of


def look(script: str, folder: Path, *, first: int = 0, last: int = 99) -> watch.Process:
    """Run a script under the look; its output must be what it is without."""
    plan = watch.Plan(operations=(first, last))
    done = run_watched(SCRIPTS / script, folder=folder, plan=plan)
    assert (done.code, done.stderr) == (0, "")
    (process,) = watch.read(folder)
    assert process.troubles == []
    return process


def at(process: watch.Process, script: str, mark: str) -> list[Operation]:
    """Return the operations of the lines that a comment names."""
    lines = marked(SCRIPTS / script)[mark]
    return [item for item in process.operations if item.line in lines and item.file == str(SCRIPTS / script)]


def named(operations: list[Operation], name: str) -> list[Operation]:
    return [item for item in operations if item.name.split(".")[-2:-1] == [name]]


@pytest.fixture(scope="module")
def fields(tmp_path_factory: pytest.TempPathFactory) -> watch.Process:
    return look("look_fields.py", tmp_path_factory.mktemp("fields"))


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> watch.Process:
    return look("look_empty.py", tmp_path_factory.mktemp("empty"), first=1, last=1)


def test_phases_and_steps(fields: watch.Process) -> None:
    script = "look_fields.py"
    phases = {
        mark: {item.phase for item in at(fields, script, mark)}
        for mark in ("model", "full", "body", "head", "loss", "step")
    }
    assert phases == {
        "model": {"setup"},
        "full": {"data"},
        "body": {"forward"},
        "head": {"forward"},
        "loss": {"other"},
        "step": {"optimizer"},
    }
    assert {item.step for item in at(fields, script, "model")} == {0}
    assert [item.step for item in at(fields, script, "full")] == [0, 0, 1, 1]
    assert [item.step for item in at(fields, script, "drawn")] == [1, 2]
    assert {item.thread for item in fields.operations} == {0}
    assert {item.outer_line for item in fields.operations} == {None}
    assert [item.index for item in fields.operations] == list(range(len(fields.operations)))


def test_modules_have_their_path_under_the_outermost(fields: watch.Process) -> None:
    body, head = (at(fields, "look_fields.py", mark)[:4] for mark in ("body", "head"))
    assert [item.module for item in named(body, "addmm")] == ["body.0"]
    assert [item.module for item in named(body, "tanh")] == ["body.1"]
    assert {item.module for item in named(head, "bernoulli_")} == {"drop"}
    assert {item.function for item in head} == {"forward"}
    assert {item.module for item in at(fields, "look_fields.py", "loss")} == {""}


def test_an_operation_of_the_backward_pass_knows_its_forward_one(fields: watch.Process) -> None:
    lines = marked(SCRIPTS / "look_fields.py")
    found = [item for item in fields.operations if item.phase == "backward" and item.step == 0]
    kin = {(item.name, item.forward_name, item.forward_line, item.forward_module) for item in found}
    (body,), (head,), (loss,) = lines["body"], lines["head"], lines["loss"]
    assert ("aten.tanh_backward.default", "aten.tanh.default", body, "body.1") in kin
    assert ("aten.mm.default", "aten.addmm.default", body, "body.0") in kin
    assert ("aten.mm.default", "aten.addmm.default", head, "head") in kin
    assert ("aten.nll_loss_backward.default", "aten.nll_loss_forward.default", loss, "") in kin
    assert {item.node for item in named(found, "tanh_backward")} == {"TanhBackward0"}
    assert {item.forward_file for item in found if item.forward_name} == {str(SCRIPTS / "look_fields.py")}
    assert {item.node for item in found if item.forward_name is None} <= {None, "AccumulateGrad"}
    assert {item.line for item in found} == lines["backward"]


def test_draws_and_generators(fields: watch.Process) -> None:
    script = "look_fields.py"
    assert [(item.is_random, item.has_generator) for item in at(fields, script, "drawn")] == [
        (True, True)
    ] * 2
    drops = named(at(fields, script, "head"), "bernoulli_")
    assert [(item.is_random, item.has_generator) for item in drops] == [(True, False)] * 2
    random = {item.name.split(".")[1] for item in fields.operations if item.is_random}
    assert random == {"uniform_", "bernoulli_", "rand", "random_"}  # nothing where nothing is dropped
    assert all(item.ins[0].digest == "" for item in named(fields.operations, "uniform_"))


def test_producers_follow_memory_through_views_and_changes(fields: watch.Process) -> None:
    script = "look_fields.py"
    (drawn, _), (total, _) = at(fields, script, "drawn"), at(fields, script, "total")
    view, change = at(fields, script, "changed")[:2]
    assert [view.name, change.name] == ["aten.slice.Tensor", "aten.add_.Tensor"]
    assert view.scalars == "T, 0, 1, 9223372036854775807"
    assert [item.producer for item in (*view.ins, *change.ins)] == [drawn.index, drawn.index]
    assert total.ins[0].producer == change.index
    assert view.outs[0].digest == "" and view.outs[0].offset is None
    assert change.ins[0].digest != change.outs[0].digest
    assert [out.shape for out in change.outs] == [(2,)]
    assert total.ins[0].digest != drawn.outs[0].digest


def test_values_are_kept_and_large_ones_sampled(fields: watch.Process) -> None:
    script = "look_fields.py"
    drawn, change, total, wide = (
        next(item for item in at(fields, script, mark) if not item.name.startswith("aten.slice"))
        for mark in ("drawn", "changed", "total", "wide")
    )
    values = values_of(fields, drawn, 0)
    assert values is not None and values.dtype == np.float32 and values.shape == (3,)
    assert np.array_equal(values_of(fields, change, 0), values[1:] + 1)
    assert values_of(fields, total, 0) == np.float32(values[0] + (values[1] + 1) + (values[2] + 1))
    sampled = values_of(fields, wide, 0)
    assert sampled is not None and sampled.dtype == np.float32 and len(sampled) == 30_000
    assert wide.outs[0][1:3] == ("bfloat16", (300_000,))


def test_uninitialised_memory_is_found_behind_what_was_written(empty: watch.Process) -> None:
    script = "look_empty.py"
    (made,) = at(empty, script, "empty")
    fill = named(at(empty, script, "filled"), "fill_")[0]
    (read,) = at(empty, script, "read")
    assert made.is_uninitialised and made.outs[0].digest == ""
    assert not fill.is_uninitialised
    assert read.ins[0].producer == fill.index
    assert fill.ins[0][:2] == ("", made.index)
    assert {item.step for item in empty.operations} == {1}


def test_what_python_made_has_no_producer(empty: watch.Process) -> None:
    (given,) = named(at(empty, "look_empty.py", "given"), "lift_fresh")
    assert given.ins[0].producer is None and given.ins[0].digest
    first = named(at(empty, "look_empty.py", "apply"), "addmm")
    assert [item.ins[0].producer for item in first] == [None]  # weights: made before the window


def test_a_backward_written_by_hand_is_an_operation(empty: watch.Process) -> None:
    (found,) = [item for item in empty.operations if item.name == "DoubledBackward"]
    lines = marked(SCRIPTS / "look_empty.py")
    assert {found.line} == lines["apply"] and found.phase == "backward"
    assert (found.forward_name, found.forward_line) == ("Doubled", found.line)
    assert len(found.ins) == len(found.outs) == 1
    values = values_of(empty, found, 0)
    assert values is not None and values.tolist() == [2.0, 2.0, 2.0]
    after = [item for item in empty.operations if found.index in [given.producer for given in item.ins]]
    assert "AddmmBackward0" in {item.node for item in after}
    assert {item.line for item in empty.operations if item.node == "DoubledBackward"} == {
        *lines["apply"],
        *lines["inner"],
    }


def test_threads_are_numbered_as_they_start(tmp_path: Path) -> None:
    process = look("look_threads.py", tmp_path, first=1)
    script = "look_threads.py"
    (made,), (ours,), (theirs,) = (at(process, script, mark) for mark in ("made", "class", "function"))
    (task,), loss = at(process, script, "task"), at(process, script, "loss")
    assert [item.thread for item in (made, ours, theirs, task, loss[0])] == [0, 4, 5, 1, 0]
    assert [item.ins[0].producer for item in (ours, theirs, task)] == [made.index, ours.index, theirs.index]
    assert {item.outer_line for item in (ours, theirs, task)} == {ours.line, theirs.line, task.line}
    assert task.index in [given.producer for item in loss for given in item.ins]


def test_two_runs_of_a_seeded_script_give_the_same_stream(tmp_path: Path, fields: watch.Process) -> None:
    again = look("look_fields.py", tmp_path)
    assert again.operations == fields.operations


def test_outside_the_window_nothing_is_noted(tmp_path: Path) -> None:
    process = look("look_fields.py", tmp_path, first=1, last=1)
    assert {item.step for item in process.operations} == {1}
    assert process.operations[0].line == min(marked(SCRIPTS / "look_fields.py")["drawn"])
    assert process.operations[-1].phase == "optimizer"


@pytest.mark.parametrize("window", [pytest.param((0, 3), marks=pytest.mark.slow), (1, 2)])
def test_company_of_other_modes_keeps_its_bits(tmp_path: Path, window: tuple[int, int]) -> None:
    script = SCRIPTS / "look_company.py"
    bare = run_bare(script)
    done = run_watched(script, folder=tmp_path, plan=watch.Plan(operations=window))
    assert (done.code, done.stdout, done.stderr) == (bare.code, bare.stdout, bare.stderr) and bare.code == 0
    (process,) = watch.read(tmp_path)
    assert process.troubles == []
    assert not [out for item in process.operations for out in item.outs if out.digest.startswith("unread")]
    again = [item for item in process.operations if item.phase == "forward" and item.node]
    assert "aten.addmm.default" in {item.name for item in again}  # computed again


@pytest.mark.parametrize(
    "names",
    [
        ("mlp",),
        pytest.param(
            ("cnn", "gan", "transformer", "lstm", "embedding_bag", "bf16", "recompute", "frozen", "stream"),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_zoo_keeps_its_bits(tmp_path: Path, names: tuple[str, ...]) -> None:
    script = SCRIPTS / "zoo_members.py"
    bare = run_bare(script, str(tmp_path / "bare"), *names)
    plan = watch.Plan(operations=(0, 2), digests=watch.DIGESTS)
    done = run_watched(script, str(tmp_path / "watched"), *names, folder=tmp_path, plan=plan)
    assert done.code == bare.code == 0, done.stderr
    assert json.loads(done.stdout) == json.loads(bare.stdout)
    (process,) = watch.read(tmp_path)
    assert process.troubles == [] and len(process.operations) > 500


def test_sharded_training_keeps_its_bits(tmp_path: Path) -> None:
    script = SCRIPTS / "look_parallel.py"
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3"]
    bare = run([*launch, str(script)])
    plan = watch.Plan(operations=(0, 9))
    done = run([*launch, "--no-python", *watch.command(script, plan=plan, folder=tmp_path)])
    assert bare.code == 0, bare.stderr
    assert (done.code, done.stdout) == (0, bare.stdout), done.stderr
    processes = watch.read(tmp_path)
    assert [item.troubles for item in processes] == [[], [], []]
    for process in processes:
        found = [item for item in process.operations if item.name.startswith("c10d.")]
        assert {"allreduce_", "_allgather_base_"} <= {item.name.split(".")[1] for item in found}
        assert {out.digest for item in found for out in item.outs} == {""}  # still under way


@pytest.mark.parametrize("window", [pytest.param((0, 1), marks=pytest.mark.slow), (1, 2)])
def test_compiled_model_stays_compiled_and_keeps_its_bits(tmp_path: Path, window: tuple[int, int]) -> None:
    script = SCRIPTS / "compiled.py"
    bare = run_bare(script)
    done = run_watched(script, folder=tmp_path, plan=watch.Plan(operations=window))
    assert (done.code, done.stdout) == (bare.code, bare.stdout) and bare.code == 0, done.stderr
    (process,) = watch.read(tmp_path)
    assert process.troubles == []
    assert {item.file for item in process.operations} == {str(script)}
    assert not [item for item in process.operations if re.search("relu|bernoulli|threshold", item.name)]


TRACED = """\
import torch

model = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.Flatten())
torch.jit.trace(model, torch.ones(1, 1, 4, 4))  # as SummaryWriter.add_graph does: sizes are tensors in it
print(model(torch.ones(1, 1, 4, 4)).shape)
"""


def test_tracing_a_model_ends_nothing_and_is_not_noted(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRACED)
    done = run_watched(
        tmp_path / "train.py", folder=tmp_path, plan=watch.Plan(operations=(0, 9), bits="none")
    )
    assert (done.code, done.stdout) == (0, "torch.Size([1, 8])\n"), done.stderr
    (process,) = watch.read(tmp_path)
    assert process.troubles == [] and {item.line for item in process.operations} >= {3, 5}
