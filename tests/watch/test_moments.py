"""Each moment is seen at the user's own line, bits stay, and the script ends when it is told to."""

import sys
import threading
from pathlib import Path

import pytest

from tests.watch.watching import SCRIPTS, marked, run, run_bare, run_watched, seen
from truestep import watch
from truestep.watch.evidence.facts.loading import BatchFetched
from truestep.watch.evidence.facts.optimizing import ClippingCalled, OptimizerStep
from truestep.watch.evidence.facts.passes import ForwardPass, ModeSet
from truestep.watch.evidence.facts.structure import FileSaved, StateLoaded
from truestep.watch.evidence.facts.surroundings import GeneratorSeeded
from truestep.watch.script.tape import Tape


def watch_marked(script: Path, *arguments: str, folder: Path) -> watch.Process:
    """Run a script watched; each kind that its comments name is seen on exactly those lines."""
    done = run_watched(script, *arguments, folder=folder)
    assert done.code == 0, done.stderr
    (process,) = watch.read(folder)
    assert process.ended == "finished"
    expected, found = marked(script), seen(process, script)
    assert {kind: found.get(kind) for kind in expected} == expected
    return process


def digest_line(text: str) -> str:
    (line,) = [line for line in text.splitlines() if line.startswith("digest")]
    return line


def test_plain_loop(tmp_path: Path) -> None:
    script = SCRIPTS / "plain.py"
    process = watch_marked(script, str(tmp_path / "model.pt"), "0", folder=tmp_path)
    assert process.num_steps == 10
    assert [moment.step for moment in process.of(OptimizerStep)] == list(range(10))
    assert [moment.facts.seed for moment in process.of(GeneratorSeeded)] == [3, 4, 0]
    assert process.of(ClippingCalled)[0].facts == ClippingCalled("norm", is_exhausted=False)
    assert [moment.facts.is_grad_enabled for moment in process.of(ForwardPass)][-1] is False
    assert [moment.facts.is_training for moment in process.of(ModeSet)] == [True, False] * 2
    assert process.of(BatchFetched)[0].facts.tensors == [[[8, 4], "torch.float32"], [[8], "torch.int64"]]
    assert process.of(OptimizerStep)[0].facts.rates == [0.01]
    assert process.of(OptimizerStep)[2].facts.rates == [0.001]
    assert process.of(FileSaved)[0].facts.path == str(tmp_path / "model.pt")
    assert [moment.facts.what for moment in process.of(StateLoaded)] == ["model", "optimizer"]


def test_closure_and_second_optimizer(tmp_path: Path) -> None:
    script = SCRIPTS / "closure.py"
    process = watch_marked(script, folder=tmp_path)
    assert process.num_steps == 3
    steps = process.of(OptimizerStep)
    assert [moment.facts.counts for moment in steps] == [True, False] * 3
    assert len(process.of(ForwardPass)) > 6


@pytest.mark.parametrize("script", ["plain.py", "closure.py", "spawned.py", "accelerate_loop.py"])
def test_bits_stay_and_lines_are_right(tmp_path: Path, script: str) -> None:
    arguments = [str(tmp_path / "model.pt"), "2"] if script == "plain.py" else []
    bare = run_bare(SCRIPTS / script, *arguments)
    assert bare.code == 0, bare.stderr
    plan = watch.Plan(digests=watch.DIGESTS)
    digested = tmp_path / "digested"
    digested.mkdir()
    assert run_watched(SCRIPTS / script, *arguments, folder=digested, plan=plan).stdout == bare.stdout
    watch_marked(SCRIPTS / script, *arguments, folder=tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("script", ["lightning_fit.py", "hf_trainer.py"])
def test_frameworks_as_their_documentation_shows(tmp_path: Path, script: str) -> None:
    bare = run_bare(SCRIPTS / script, str(tmp_path / "bare"))
    assert bare.code == 0, bare.stderr
    plan = watch.Plan(digests=watch.DIGESTS)
    done = run_watched(SCRIPTS / script, str(tmp_path / "watched"), folder=tmp_path, plan=plan)
    assert digest_line(done.stdout) == digest_line(bare.stdout)
    (process,) = watch.read(tmp_path)
    expected, found = marked(SCRIPTS / script), seen(process, SCRIPTS / script)
    assert {kind: found.get(kind) for kind in expected} == expected
    assert len(process.updates) == process.num_steps > 0
    assert len({update.parts["gradients"] for update in process.updates}) == process.num_steps


def test_each_process_of_torchrun_leaves_its_evidence(tmp_path: Path) -> None:
    script = SCRIPTS / "processes.py"
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    bare = run([*launch, str(script)])
    plan = watch.Plan(digests=watch.DIGESTS)
    done = run([*launch, "--no-python", *watch.command(script, plan=plan, folder=tmp_path)])
    assert (done.code, done.stdout) == (bare.code, bare.stdout), done.stderr
    first, second = watch.read(tmp_path)
    assert [(item.rank, item.size, item.num_steps) for item in (first, second)] == [(0, 2, 6), (1, 2, 6)]
    expected = marked(script)
    for process in (first, second):
        found = seen(process, script)
        assert {kind: found.get(kind) for kind in expected} == expected
    assert [item.parts["weights"] for item in first.updates] == [
        item.parts["weights"] for item in second.updates
    ]
    assert first.updates[0].parts["batch"] != second.updates[0].parts["batch"]


@pytest.mark.slow
def test_compiled_model_keeps_its_bits_and_graphs(tmp_path: Path) -> None:
    script = SCRIPTS / "compiled.py"
    bare = run_bare(script)
    assert bare.code == 0, bare.stderr
    done = run_watched(script, folder=tmp_path)
    assert (done.code, done.stdout) == (bare.code, bare.stdout)
    (process,) = watch.read(tmp_path)
    assert len(process.of(ForwardPass)) == process.num_steps == 3


def test_script_is_ended_after_some_steps(tmp_path: Path) -> None:
    plan = watch.Plan(steps=3)
    done = run_watched(SCRIPTS / "stubborn.py", "once", folder=tmp_path, plan=plan)
    assert (done.code, done.stdout, done.stderr) == (0, "caught\natexit\n", "")
    (process,) = watch.read(tmp_path)
    assert (process.num_steps, process.ended) == (3, "stopped")
    assert process.of(OptimizerStep)[-1].step == 2


def test_script_that_catches_everything_is_ended_all_the_same(tmp_path: Path) -> None:
    plan = watch.Plan(steps=2)
    done = run_watched(SCRIPTS / "stubborn.py", "never", folder=tmp_path, plan=plan)
    assert (done.code, done.stderr) == (0, "")
    assert done.stdout.count("caught") == 5
    (process,) = watch.read(tmp_path)
    assert (process.num_steps, process.ended) == (2, "stopped")


def test_another_thread_may_note_a_new_kind_while_one_asks_for_kinds(tmp_path: Path) -> None:
    tape = Tape(str(tmp_path), watch.Plan())

    def note() -> None:
        for site in range(20_000):
            tape.mark(ModeSet("Model", is_training=True), site, 0)

    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    thread = threading.Thread(target=note)
    thread.start()
    try:
        while thread.is_alive():
            assert not tape.has(OptimizerStep)
    finally:
        thread.join()
        sys.setswitchinterval(interval_s)
        tape.close()
