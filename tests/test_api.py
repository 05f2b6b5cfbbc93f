"""The public names: listed once, reachable, and cheap to import."""

import json
import os
import subprocess
import sys
from importlib import metadata

import pytest

import truestep


def test_all_lists_exactly_the_lazy_names_and_the_light_ones() -> None:
    assert truestep.__all__ == sorted(truestep.__all__)
    assert set(truestep.__all__) == {*truestep._HOMES, *truestep._PARTS, "__version__", "errors"}


def test_dir_shows_every_public_name() -> None:
    assert set(truestep.__all__) <= set(dir(truestep))


@pytest.mark.parametrize("name", truestep.__all__)
def test_every_public_name_resolves(name: str) -> None:
    assert getattr(truestep, name) is not None


@pytest.mark.parametrize("name", sorted(truestep._HOMES))
def test_every_lazy_name_is_in_the_api_of_its_home(name: str) -> None:
    __import__(truestep._HOMES[name])
    home = sys.modules[truestep._HOMES[name]]
    assert getattr(truestep, name) is getattr(home, name)
    assert name in getattr(home, "__all__", vars(home))


def test_an_unknown_name_says_which_there_are() -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'Trainer'. It has Loader, Packed, Padded, Run, "):
        truestep.Trainer  # noqa: B018


def test_the_installed_version_is_the_one_in_the_package() -> None:
    assert metadata.version("truestep") == truestep.__version__


@pytest.mark.cold
def test_importing_truestep_does_not_import_torch() -> None:
    code = "import sys, truestep, truestep.errors; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.cold
@pytest.mark.slow
def test_run_adds_at_most_a_tenth_of_a_second_to_importing_torch() -> None:
    # Both are timed in one process: a difference of two processes' totals is mostly noise. The processor's
    # time, not the clock's: other tests run at the same time. Without the collector: whether it looks through
    # all of torch's objects in the one part or in the other is luck, and takes as long as all of ours.
    code = """
import gc, json, time
gc.disable()
start = time.process_time(); import torch
middle = time.process_time(); import truestep; truestep.Run
print(json.dumps([middle - start, time.process_time() - middle]))
"""
    # With compiled files, as an installed package has them: the first of the runs writes them.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-c", code]
    runs = [
        json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True, env=environment).stdout)
        for _ in range(8)
    ]
    torch_s, added_s = min(runs, key=lambda times: times[1])  # the one that other work disturbed least
    assert added_s <= max(0.1, torch_s / 20), (  # a busy machine is slow at both
        f"importing truestep.Run takes {added_s:.3f} s after torch, which takes {torch_s:.3f} s"
    )
