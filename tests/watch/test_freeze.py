"""What is held still is the same in every run; without it runs differ; all else goes on as it was."""

import sys
import time
from pathlib import Path

import pytest

from tests.watch.watching import run, run_watched, write
from truestep import watch

CORPUS = Path(__file__).parents[2] / "benchmarks" / "corpus" / "causes"

SCRIPTS = {
    "hash": "print(list({str(number) for number in range(50)}))",
    "addresses": """
        things = [object() for _ in range(5000)]
        places = {thing: place for place, thing in enumerate(things)}
        print(id(things[0]), [places[thing] for thing in set(things)])
    """,
    "clock": """
        import time
        print(time.time(), time.time_ns(), time.perf_counter(), time.monotonic_ns(), time.process_time())
        end = time.monotonic() + 0.05
        num = 0
        while time.monotonic() < end:
            time.sleep(0.01)
            num += 1
        print(num)
    """,
    "entropy": """
        import os, random, secrets, uuid
        print(os.urandom(9), secrets.token_hex(), uuid.uuid4(), random.SystemRandom().random())
        print(os.urandom(9))
    """,
    "random": """
        import random
        print(random.random(), random.Random().random(), random.Random().random())
        random.seed()
        print(random.random())
    """,
    "numpy": """
        import numpy as np
        print(np.random.rand(), np.random.default_rng().random(), np.random.default_rng().random())
        print(np.random.RandomState().rand(), np.random.Generator(np.random.PCG64()).random())
        np.random.seed()
        print(np.random.rand())
    """,
    "threads": """
        import concurrent.futures, random, threading, time
        order = []
        def work(number):
            time.sleep(random.random() / 100)
            order.append(number)
            return number
        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            waiting = {pool.submit(work, number) for number in range(8)}
            print([future.result() for future in concurrent.futures.as_completed(waiting)])
            print(list(pool.map(work, range(8))))
        print(order)
    """,
    "torch": """
        import torch
        print(torch.rand(3), torch.seed(), torch.rand(1))
    """,
}
FRESH = {"torch", "numpy", "random", "entropy", "clock"}


AT_START = {"hash", "addresses", "entropy"}
"""What Python draws from as it starts, which forks of one process have in common."""


def outputs(script: Path, frozen: tuple[str, ...], *, num_runs: int, folder: Path) -> list[str]:
    found = []
    for _ in range(num_runs):
        done = run_watched(script, folder=folder, plan=watch.Plan(frozen=frozen))
        assert done.code == 0, done.stderr
        found.append(done.stdout)
    return found


@pytest.mark.parametrize(
    "frozen", [pytest.param(name, marks=[pytest.mark.cold] if name in AT_START else []) for name in SCRIPTS]
)
def test_runs_differ_without_and_are_the_same_with_it(tmp_path: Path, frozen: str) -> None:
    script = write(tmp_path, SCRIPTS[frozen])
    folder = tmp_path / "evidence"  # the script's own folder stays as it is: imports list it
    folder.mkdir()
    num_runs = 2 if frozen == "torch" else 3
    assert len(set(outputs(script, (), num_runs=num_runs, folder=folder))) > 1
    found = outputs(script, (frozen,), num_runs=num_runs, folder=folder)
    assert len(set(found)) == 1
    if frozen in FRESH:  # no draw and no reading comes twice
        words = [word for word in found[0].replace("\n", " ").split(" ") if len(word) > 6]
        assert len(set(words)) == len(words) > 3
    assert [trouble for process in watch.read(folder) for trouble in process.troubles] == []


def test_threads_end_in_the_order_of_their_start(tmp_path: Path) -> None:
    (output,) = outputs(write(tmp_path, SCRIPTS["threads"]), ("threads",), num_runs=1, folder=tmp_path)
    row = list(range(8))
    assert output == f"{row}\n{row}\n{row * 3}\n"


def test_a_thread_that_waits_for_others_is_let_go_and_told(tmp_path: Path) -> None:
    script = write(
        tmp_path,
        """
        import queue, threading
        from concurrent.futures import ThreadPoolExecutor
        items = queue.Queue()
        def consume():
            while (item := items.get()) is not None:
                print(item)
        thread = threading.Thread(target=consume, name="consumer")
        thread.start()
        items.put("one")
        items.put(None)
        thread.join()
        with ThreadPoolExecutor(2) as pool:
            first = pool.submit(items.get)
            second = pool.submit(items.put, "two")
            print(first.result())
        try:
            with ThreadPoolExecutor(1) as pool:
                pool.submit(lambda: 1 / 0).result()
        except ZeroDivisionError as error:
            print("raised", error)
        """,
    )
    (output,) = outputs(script, ("threads",), num_runs=1, folder=tmp_path)
    assert output == "one\ntwo\nraised division by zero\n"
    (process,) = watch.read(tmp_path)
    assert [trouble.split(" waits")[0] for trouble in process.troubles] == [
        "thread consumer",
        "work submitted to a pool",
    ]


def test_listings_come_sorted(tmp_path: Path) -> None:
    files = tmp_path / "files"
    files.mkdir()
    names = [f"file-{(number * 7) % 30:02d}" for number in range(30)]
    for name in names:
        (files / name).touch()
    script = write(
        tmp_path,
        f"""
        import glob, os
        from pathlib import Path
        folder = {str(files)!r}
        print(os.listdir(folder), [path.name for path in Path(folder).glob("*")])
        print(glob.glob("*", root_dir=folder), [path.name for path in Path(folder).iterdir()])
        print([files for _, _, files in os.walk(folder)][0])
        with os.scandir(folder) as entries:
            print([entry.name for entry in entries if entry.is_file()])
        """,
    )
    (output,) = outputs(script, (), num_runs=1, folder=tmp_path)
    (frozen,) = outputs(script, ("listing",), num_runs=1, folder=tmp_path)
    assert frozen == f"{sorted(names)} {sorted(names)}\n" * 2 + f"{sorted(names)}\n" * 2
    assert sorted(output) == sorted(frozen) and output != frozen


def test_other_callers_have_the_real_clock(tmp_path: Path) -> None:
    script = write(
        tmp_path, "import logging, time\nprint(logging.makeLogRecord({}).created)\nprint(time.time())"
    )
    (output,) = outputs(script, ("clock",), num_runs=1, folder=tmp_path)
    real, frozen = map(float, output.split())
    assert abs(real - time.time()) < 300
    assert frozen == 1_700_000_000.001


def test_a_script_that_seeds_is_unaffected(tmp_path: Path) -> None:
    script = write(
        tmp_path,
        """
        import random, torch, numpy as np
        random.seed(5)
        np.random.seed(5)
        torch.manual_seed(5)
        print(random.random(), random.Random(5).random(), np.random.rand(), torch.rand(1).item())
        print(np.random.default_rng(5).random(), torch.Generator().manual_seed(5).initial_seed())
        """,
    )
    (plain,) = outputs(script, (), num_runs=1, folder=tmp_path)
    (frozen,) = outputs(script, ("torch", "numpy", "random", "entropy"), num_runs=1, folder=tmp_path)
    assert frozen == plain


def test_torch_is_switched_and_stays_so(tmp_path: Path) -> None:
    script = write(
        tmp_path,
        """
        import torch
        print(torch.get_num_threads(), torch.are_deterministic_algorithms_enabled())
        torch.set_num_threads(3)
        torch.use_deterministic_algorithms(False)
        print(torch.get_num_threads(), torch.are_deterministic_algorithms_enabled())
        print(torch.empty(3).isnan().all().item(), torch.is_deterministic_algorithms_warn_only_enabled())
        """,
    )
    (frozen,) = outputs(script, ("algorithms", "intraop"), num_runs=1, folder=tmp_path)
    assert frozen == "1 True\n1 True\nTrue True\n"


def test_numpy_may_come_first(tmp_path: Path) -> None:
    script = write(tmp_path, "import numpy\nprint(numpy.random.default_rng(1).random())")
    assert len(set(outputs(script, (), num_runs=1, folder=tmp_path))) == 1


ENVIRONMENT = "import os; print(os.environ.get('TRUESTEP_A'), 'HOME' in os.environ, hash('a'))"


def test_variables_are_set_and_taken_away(tmp_path: Path) -> None:
    script = write(tmp_path, ENVIRONMENT)
    settings = {"TRUESTEP_A": "a b$c'\"", "HOME": None, "PYTHONHASHSEED": "0"}
    words = watch.command(script, plan=watch.Plan(), folder=tmp_path, environment=settings)
    done, again = run(words), run(words)
    assert done.stdout.startswith("a b$c'\" False ") and done == again


def test_environment_and_holds_behind_torchrun(tmp_path: Path) -> None:
    script = write(tmp_path, ENVIRONMENT)
    plan = watch.Plan(frozen=("hash", "addresses"))
    words = watch.command(script, plan=plan, folder=tmp_path, environment={"TRUESTEP_A": "1", "HOME": None})
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = run([*launch, "--no-python", *words])
    lines = done.stdout.splitlines()
    assert (done.code, len(lines), len(set(lines))) == (0, 2, 1), done.stderr
    assert lines[0].startswith("1 False ")
    assert [process.troubles for process in watch.read(tmp_path)] == [[], []]


@pytest.mark.parametrize(
    ("cause", "frozen"),
    [
        ("scatter_order", "algorithms"),
        ("scatter_order", "intraop"),
        ("custom_function", "threads"),
        ("uninitialised_memory", "algorithms"),
    ],
)
def test_causes_of_the_corpus_are_frozen(tmp_path: Path, cause: str, frozen: str) -> None:
    found = outputs(CORPUS / f"{cause}.py", (frozen,), num_runs=3, folder=tmp_path)
    assert len({output.splitlines()[-1] for output in found}) == 1
