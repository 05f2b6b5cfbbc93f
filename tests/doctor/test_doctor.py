"""`truestep doctor`: recorded machines, each broken in its own way, with the advice for it; and the probe.

What is recorded of machines with GPUs was put together from the messages that CUDA, nvidia-smi and torch give
there. None of it was recorded on one.
"""

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from tests import accelerator
from tests.rules.evidence.machines import SOUND
from truestep.check import Evaluation, evaluate_rules
from truestep.cli import doctor
from truestep.cli._page import Format
from truestep.doctor import survey as survey_module
from truestep.doctor.survey import probe, read_answer, read_limits, read_needs
from truestep.rules import Evidence, find_rules
from truestep.rules.env._machine import Device, Machine, Need, does_satisfy, major

MACHINES = Path(__file__).parent / "machines"
RULES = [rule for rule in find_rules() if rule.meta.code.startswith("ENV")]
COMMAND = str(Path(sys.executable).with_name("truestep"))

SOUND_ONES = ["sound_gpu", "sound_cpu", "sound_cpu_with_cuda_build", "sound_share_of_a_node"]
BROKEN = {
    "broken_import": ("ENV01", "Unset LD_LIBRARY_PATH"),
    "torch_missing": ("ENV01", "pip install torch"),
    "no_driver_in_the_container": ("ENV02", "start it with --gpus all"),
    "driver_updated_without_restart": ("ENV02", "Restart the machine: the driver was updated"),
    "old_driver": ("ENV03", "driver to 580 or newer, or install a build that it supports"),
    "very_old_driver": ("ENV03", "Update NVIDIA's driver to 525 or newer."),
    "unknown_error_after_sleep": ("ENV04", "sudo modprobe nvidia_uvm"),
    "no_fabric_manager": ("ENV04", "systemctl start nvidia-fabricmanager"),
    "cpu_build_beside_a_card": ("ENV05", "--index-url https://download.pytorch.org/whl/cu130"),
    "new_card_old_build": (
        "ENV06",
        "CUDA 12.8 or newer, the first for this GPU: pip install --force-reinstall torch",
    ),
    "old_card_new_build": ("ENV06", "the build with CUDA 12.6, the last for GPUs this old"),
    "all_gpus_hidden": ("ENV07", "Unset CUDA_VISIBLE_DEVICES"),
    "empty_visible_devices": ("ENV07", "Unset CUDA_VISIBLE_DEVICES"),
    "gpus_out_of_range": ("ENV07", "numbers that nvidia-smi -L lists"),
    "cudnn_replaced": ("ENV10", "'nvidia-cudnn-cu12==9.10.2.21'"),
    "torchvision_left_behind": ("ENV10", "pip install -U 'torch==2.9.1' 'torchvision'"),
    "accelerate_too_old": ("ENV10", "pip install -U 'accelerate>=0.26.0'"),
    "quota_of_two_cores": ("ENV14", "export OMP_NUM_THREADS=2"),
    "torch_left_behind": ("ENV10", "torch>=2.9"),
    "small_shared_memory": ("ENV16", "--shm-size=8g"),
    "full_shared_memory": ("ENV16", "Remove files of ended processes"),
}


def recorded(name: str) -> Machine:
    facts = json.loads((MACHINES / f"{name}.json").read_text())
    devices = tuple(Device(**item) for item in facts.pop("devices", ()))
    needs = tuple(Need(**item) for item in facts.pop("needs", ()))
    return Machine(devices=devices, needs=needs, **facts)


def judged(machine: Machine) -> Evaluation:
    evaluation = evaluate_rules(RULES, Evidence(machine=machine))
    assert evaluation.failed == []
    return evaluation


def advice(machine: Machine, *severities: str) -> dict[str, str]:
    found = judged(machine).findings
    return {told.rule.meta.code: told.fix for told in found if told.severity in severities}


def test_each_recorded_machine_is_asserted() -> None:
    assert {path.stem for path in MACHINES.iterdir()} == {*SOUND_ONES, *BROKEN}


@pytest.mark.parametrize("name", SOUND_ONES)
def test_a_sound_machine_is_left_alone(name: str) -> None:
    assert advice(recorded(name), "error", "warning") == {}


@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.practice("P01")
def test_a_broken_machine_is_told_once_with_the_right_advice(name: str) -> None:
    """A machine whose parts do not match is reported once, with the fix."""
    code, words = BROKEN[name]
    told = advice(recorded(name), "error", "warning")
    assert list(told) == [code]
    assert words in told[code]


def test_a_card_without_kernels_explains_why_it_cannot_be_used() -> None:
    (told,) = judged(recorded("new_card_old_build")).findings
    assert [item.rule.meta.code for item in told.consequences] == ["ENV04"]


def test_each_rule_of_the_doctor_has_a_recorded_machine() -> None:
    assert {code for code, _ in BROKEN.values()} == {rule.meta.code for rule in RULES if not rule.meta.needs}


def test_rules_about_machines_have_nothing_to_look_at_in_a_script() -> None:
    evaluation = evaluate_rules(RULES, Evidence())
    assert evaluation.not_observed == RULES and evaluation.findings == []


# The probe


def write_tool(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


SMI = """\
if [ "$1" = -L ]; then
echo "GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77)"
echo "  MIG 1g.5gb Device  0: (UUID: MIG-3eb87630-93d5-b2b6-b8ff-9b359caf4ee2)"
echo "GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-c6d4f1ef-42e4-6de3-91c7-45d71c87eb3f)"
else
echo "| NVIDIA-SMI 550.54.14              Driver Version: 550.54.14      CUDA Version: 12.4     |"
fi"""


def test_the_tools_are_asked_and_torch_in_a_process_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tool(tmp_path, "nvidia-smi", SMI)
    write_tool(tmp_path, "nvcc", 'echo "Cuda compilation tools, release 11.8, V11.8.89"')
    (tmp_path / "torch.py").write_text("raise RuntimeError('not this one')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,7")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    machine = probe()
    assert (machine.driver, machine.driver_cuda, machine.toolkit) == ("550.54.14", "12.4", "11.8")
    assert machine.gpus == ("NVIDIA A100-SXM4-40GB",) * 2 and machine.num_visible_gpus == 1
    assert machine.torch is not None and machine.torch_error is None and machine.threads == 1
    assert machine.variables["CUDA_VISIBLE_DEVICES"] == "1,7"
    assert "numpy" in machine.packages and machine.num_cores >= machine.num_usable_cores >= 1
    assert ("truestep", "torch") in {(need.owner, need.name) for need in machine.needs}


def test_a_tool_that_fails_or_hangs_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mismatch = "Failed to initialize NVML: Driver/library version mismatch"
    write_tool(tmp_path, "nvidia-smi", f'echo "{mismatch}"\nexit 18')
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert survey_module._about_driver() == {"driver_error": mismatch}
    write_tool(tmp_path, "nvidia-smi", "exec sleep 60")
    monkeypatch.setattr(survey_module, "_TOOL_PATIENCE_S", 0.2)
    assert survey_module._about_driver() == {"driver_error": "nvidia-smi did not answer within 0 s"}


def test_a_torch_that_cannot_be_imported_is_quoted(tmp_path: Path) -> None:
    """Through the command: nothing else in the doctor may need torch."""
    (tmp_path / "torch.py").write_text("raise ImportError('libcudnn.so.9: cannot open shared object file')")
    done = subprocess.run(
        [COMMAND, "doctor", "--format", "json"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 1, done.stderr
    answer = json.loads(done.stdout)
    assert answer["machine"]["torch_error"] == "ImportError: libcudnn.so.9: cannot open shared object file"
    assert answer["findings"][0]["code"] == "ENV01"
    assert "--force-reinstall torch" in answer["findings"][0]["fix"]


def test_what_torch_said_before_it_broke_counts() -> None:
    assert read_answer("", "no answer within 180 s") == {"torch_error": "no answer within 180 s"}
    said = 'a library says hello\n{"torch": "2.9.1", "build_cuda": "12.8"}\n'
    facts = read_answer(said, "the process was killed by signal 11")
    assert facts["torch"] == "2.9.1" and facts["cuda_error"] == "the process was killed by signal 11"
    assert "cuda_error" not in read_answer(said, None)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_limits_of_control_groups_are_the_least_on_the_way_up(tmp_path: Path) -> None:
    new = tmp_path / "new"
    write(new / "proc/self/cgroup", "0::/kubepods/pod1\n")
    write(new / "sys/fs/cgroup/kubepods/cpu.max", "250000 100000\n")
    write(new / "sys/fs/cgroup/kubepods/pod1/cpu.max", "max 100000\n")
    write(new / "sys/fs/cgroup/kubepods/pod1/memory.max", "8589934592\n")
    assert read_limits(new) == {"cpu_quota": 2.5, "memory_limit_bytes": 8 * 2**30}
    assert read_limits(tmp_path / "none") == {"cpu_quota": None, "memory_limit_bytes": None}


@pytest.mark.parametrize(
    ("version", "wanted", "fits"),
    [
        ("2.9.1+cu128", "==2.9.1", True),
        ("2.9.0", "==2.9", True),
        ("2.10.0", ">=2.9", True),
        ("2.8.0", "<4.0,>=2.9", False),
        ("2.9.1", "==2.9.*", True),
        ("2.10.1", "==2.9.*", False),
        ("2.9.1", "!=2.9.*", False),
        ("1.6.2", "~=1.4", True),
        ("2.0", "~=1.4", False),
        ("1.5.0", "~=1.4.2", False),
        ("2.13.0.dev20260101", ">=2.13", True),
        ("anything", ">=2", True),
        ("1.0", "", True),
    ],
)
def test_versions_are_compared_by_their_numbers(version: str, wanted: str, fits: bool) -> None:
    assert does_satisfy(version, wanted) is fits


def test_requirements_hold_where_their_conditions_do() -> None:
    system, machine = platform.system(), platform.machine()
    lines = [
        "torch (>=2.0)",
        'Torch_Vision[x]==0.1; extra == "vision"',
        f'triton==3.5; platform_system == "{system}" and platform_machine == "{machine}"',
        'triton==3.6; platform_system == "Elsewhere"',
        f'numpy<2; python_version < "3.9" or platform_system == "{system}"',
        "typer",
    ]
    found = {(need.name, need.wanted) for need in read_needs("x", lines)}
    assert found == {("torch", ">=2.0"), ("triton", "==3.5"), ("numpy", "<2")}
    assert len(read_needs("x", lines, extras=["vision"])) == 4
    assert major("550.54.14") == 550 and major("nightly") == 0


# The command


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [COMMAND, "doctor", *words], capture_output=True, text=True, check=False, timeout=120
    )


def test_json_is_alone_on_stdout_and_exit_code_follows_it() -> None:
    done = run("--format", "json")
    answer = json.loads(done.stdout)
    assert set(answer) == {"findings", "failed_rules", "machine"} and answer["machine"]["torch"]
    assert done.returncode == int(any(item["severity"] != "info" for item in answer["findings"]))


@pytest.mark.practice("P02")
def test_text_explains_the_three_numbers_and_advises(capsys: pytest.CaptureFixture[str]) -> None:
    """`truestep doctor` explains the three CUDA versions side by side, and prints the fix."""
    machine = recorded("old_driver")
    assert doctor._answer(machine, judged(machine), format_=Format.text) == 1
    printed = capsys.readouterr().out
    for line in (
        "CUDA, build   13.0   what torch was built with",
        "CUDA, driver  12.4   the highest that the driver runs",
        "CUDA, toolkit 12.4   the compiler's (nvcc)",
        "error  ENV03 outdated-driver",
        "1 problem to fix",
    ):
        assert line in printed


def test_an_accelerator_of_any_kind_is_listed() -> None:
    code = "from truestep.doctor.survey import print_torch; print_torch()"
    facts = read_answer(accelerator.run(code), None)
    assert facts["devices"] == [{"name": "Test accelerator"}] * 2


@pytest.mark.verdict("nothing found, but a rule failed: please report it")
def test_a_machine_is_fine_only_if_every_rule_ran(capsys: pytest.CaptureFixture[str]) -> None:
    bad = judged(recorded("broken_import"))
    for evaluation, said, code in (
        (Evaluation(), "fine: everything fits together", 0),
        (Evaluation(failed=["ENV01: KeyError"]), "nothing found, but a rule failed", 3),
        (Evaluation(findings=bad.findings[:1], failed=["ENV02: KeyError"]), "1 problem to fix", 1),
    ):
        assert doctor._answer(SOUND, evaluation, format_=Format.text) == code
        shown = capsys.readouterr().out
        endings = ("fine:", "nothing found", "problem to fix")
        assert said in shown and sum(words in shown for words in endings) == 1, shown
        assert doctor._answer(SOUND, evaluation, format_=Format.json) == code
        assert json.loads(capsys.readouterr().out)["failed_rules"] == evaluation.failed
