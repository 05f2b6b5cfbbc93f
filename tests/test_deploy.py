"""The start files under deploy/ give torchrun what it needs, and the Slurm script does what it says."""

import os
import signal
import stat
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from torch.distributed.run import get_args_parser

FOLDER = Path(__file__).parents[1] / "deploy"
SLURM = {"SLURM_JOB_NODELIST": "n[1-3]", "SLURM_JOB_ID": "41234", "SLURM_JOB_NUM_NODES": "3"}

Fake = Callable[[str, str], None]


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    """Commands of a cluster, as short shell scripts that stand before the real ones."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    def write(name: str, body: str) -> None:
        path = tmp_path / name
        path.write_text(f"#!/bin/bash\n{body}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    write("torchrun", 'printf "%s\\n" "$@"')
    return write


def parse(output: str) -> Any:
    """What torchrun itself makes of its arguments, one on each line."""
    return get_args_parser().parse_args(output.splitlines())


def jobs() -> dict[str, tuple[str, dict[str, Any]]]:
    """Each Kubernetes file's Job with the name that its first pod must have."""
    jobset = yaml.safe_load((FOLDER / "kubernetes-jobset.yaml").read_text())
    (replicated,) = jobset["spec"]["replicatedJobs"]
    name = jobset["metadata"]["name"]
    service, job = yaml.safe_load_all((FOLDER / "kubernetes-job.yaml").read_text())
    assert job["spec"]["template"]["spec"]["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    return {
        "jobset": (f"{name}-{replicated['name']}-0-0.{name}", replicated["template"]["spec"]),
        "job": (f"{job['metadata']['name']}-0.{service['metadata']['name']}", job["spec"]),
    }


@pytest.mark.parametrize("kind", ["jobset", "job"])
def test_kubernetes_pods_meet_at_the_first_of_them(fake: Fake, kind: str) -> None:
    first_pod, job = jobs()[kind]
    (container,) = job["template"]["spec"]["containers"]
    environment = {item["name"]: item.get("value", "10.0.0.7") for item in container["env"]}
    assert environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] == "1"
    for index in range(job["completions"]):
        env = os.environ | environment | {"JOB_COMPLETION_INDEX": str(index)}
        done = subprocess.run(container["command"], env=env, capture_output=True, text=True, check=True)
        given = parse(done.stdout)
        assert int(given.nnodes) == job["parallelism"] == job["completions"]
        assert given.rdzv_endpoint == f"{first_pod}:29400" and given.rdzv_backend == "c10d"
        assert given.rdzv_conf.startswith(f"is_host={int(index == 0)},")
        assert (given.local_addr, given.training_script) == ("10.0.0.7", "train.py")


@pytest.mark.parametrize("kind", ["jobset", "job"])
def test_kubernetes_pods_have_room_for_the_batches_of_workers(kind: str) -> None:
    pod = jobs()[kind][1]["template"]["spec"]
    (container,) = pod["containers"]
    (name,) = [mount["name"] for mount in container["volumeMounts"] if mount["mountPath"] == "/dev/shm"]
    (volume,) = [volume for volume in pod["volumes"] if volume["name"] == name]
    assert volume["emptyDir"] == {"medium": "Memory"}


def test_both_kubernetes_files_run_the_same_but_for_the_name_to_meet_at() -> None:
    (first, one), (second, other) = jobs().values()
    assert other["template"]["spec"].pop("subdomain")
    assert str(one).replace(first, second) == str(other)


@pytest.fixture
def cluster(fake: Fake, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """What the batch script calls; what it asked of `scontrol` is in the file returned."""
    for name, value in SLURM.items():
        monkeypatch.setenv(name, value)
    asked = tmp_path / "asked"
    fake("scontrol", f'echo "$@" >> {asked}; [ "$1" = show ] && printf "n1\\nn2\\nn3\\n"')
    fake("srun", 'shift; SLURM_PROCID=1 SLURMD_NODENAME=n2 exec "$@"')
    fake("sleep", "exit 0")
    return asked


def test_slurm_starts_torchrun_on_each_machine(cluster: Path) -> None:
    done = subprocess.run([FOLDER / "slurm.sh"], capture_output=True, text=True, check=True)
    given = parse(done.stdout)
    assert (given.nnodes, given.rdzv_endpoint, given.rdzv_id) == ("3", "n1:21234", "41234")
    assert given.rdzv_conf.startswith("is_host=0,")
    assert (given.local_addr, given.training_script) == ("n2", "train.py")


def test_slurm_begins_anew_when_torchrun_gives_up(cluster: Path, fake: Fake, tmp_path: Path) -> None:
    tries = tmp_path / "tries"
    note = f'echo "$TORCH_DISABLE_SHARE_RDZV_TCP_STORE" >> {tries}'
    fake("torchrun", f'{note}; [ "$(wc -l < {tries})" = 2 ]')
    assert subprocess.run([FOLDER / "slurm.sh"], check=False).returncode == 0
    assert tries.read_text() == "1\n1\n"


@pytest.mark.parametrize("told", [signal.SIGUSR1, signal.SIGTERM])
def test_slurm_puts_a_run_back_into_the_queue_at_its_limit_and_not_when_cancelled(
    cluster: Path, fake: Fake, tmp_path: Path, told: signal.Signals
) -> None:
    save = f'trap "echo saved > {tmp_path}/saved; exit 1" TERM'
    fake("torchrun", f"{save}; echo $$ > {tmp_path}/pid; while :; do read -t 0.05 <> <(:); done")
    fake("scancel", f'[ "$*" = "--signal=TERM 41234" ] && kill -TERM "$(cat {tmp_path}/pid)"')
    script = subprocess.Popen([FOLDER / "slurm.sh"])
    try:
        deadline_s = time.monotonic() + 20
        while not (tmp_path / "pid").exists() and time.monotonic() < deadline_s:
            time.sleep(0.02)
        script.send_signal(told)
        assert script.wait(20) == (0 if told == signal.SIGUSR1 else -signal.SIGTERM)
    finally:
        script.kill()
        if told == signal.SIGTERM:  # here nobody but this test ends what a cancelled job leaves
            os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    assert (tmp_path / "saved").exists() is (told == signal.SIGUSR1)
    assert ("requeue 41234" in cluster.read_text().splitlines()) is (told == signal.SIGUSR1)
