"""How long a snapshot holds up the loop: ours in the background against `torch.save` and DCP's `async_save`.

The state is a model's weights and AdamW's two moments, in one process and sharded by FSDP2 over two. The
stall is the time of the call that begins a save; the writing behind it is over before the next turn.
Claims are of the second and later saves, which use memory again; the first pays for its pages, and is shown.
Prints tables, or with --json one JSON object. Exit status 0 only if every claim holds.
"""

import argparse
import itertools
import logging
import multiprocessing
import random
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from time import perf_counter
from typing import Any

import measure
import torch
from torch import nn

OURS, DCP, DCP_PLAIN, TORCH = "truestep", "DCP async_save, stager kept", "DCP async_save", "torch.save"
FIRST = ", first save"
WIDTH = 1024
MOST_OF_DCP, MOST_OF_TORCH = 1.0, 0.5

Turn = Callable[[], float]


def make_state(num_params: int, *, is_sharded: bool) -> dict[str, Any]:
    """Return the states of a model of square layers and of its AdamW after one step."""
    num_layers = max(1, num_params // WIDTH**2)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(num_layers)))
    if is_sharded:
        from torch.distributed.fsdp import fully_shard

        fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}


def make_ours(state: Any, root: Path, crew: Any) -> tuple[Turn, Turn]:
    """Return a turn that uses the memory of the save before, and one that has none yet."""
    from truestep.run.checkpoint import BackgroundSaver, Snapshot, Store

    store = Store(root / "ours", run_id="cost", crew=crew)
    kept = BackgroundSaver(store)
    cursors = itertools.count(1)

    def save(saver: BackgroundSaver) -> float:
        snapshot = Snapshot(cursor=next(cursors), states=state, facts={})
        begun = perf_counter()
        saver.submit(snapshot)
        stall = perf_counter() - begun
        saver.wait()
        return stall

    def first() -> float:
        saver = BackgroundSaver(store)
        stall = save(saver)
        saver.close()
        return stall

    return lambda: save(kept), first


def make_dcp(state: Any, root: Path, group: Any) -> tuple[Turn, Turn, Turn]:
    """Return DCP's turns: with a stager that keeps its memory, with a new one, and without any."""
    from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
    from torch.distributed.checkpoint.state_dict_saver import async_save

    # Pinned memory, non-blocking copies and staging in a thread are for a GPU; shared memory is for saving in
    # another process. What its documentation offers for CPU memory is to keep the stager, and so its memory.
    def make_stager() -> DefaultStager:
        return DefaultStager(StagingOptions(False, False, False, False))

    numbers = itertools.count()

    def save(stager: DefaultStager | None) -> float:
        path = root / "dcp" / str(next(numbers))
        begun = perf_counter()
        future = async_save(state, checkpoint_id=path, async_stager=stager, process_group=group)
        stall = perf_counter() - begun
        future.result()
        torch.distributed.barrier()
        if torch.distributed.get_rank() == 0:
            shutil.rmtree(path)
        return stall

    def first() -> float:
        stager = make_stager()
        stall = save(stager)
        stager.close()
        return stall

    kept = make_stager()
    return lambda: save(kept), first, lambda: save(None)


def make_torch(state: Any, root: Path) -> Turn:
    def save() -> float:
        path = root / f"torch-{torch.distributed.get_rank()}.pt"
        begun = perf_counter()
        torch.save(state, path)
        stall = perf_counter() - begun
        path.unlink()
        return stall

    return save


def take_turns(turns: dict[str, Turn], num_rounds: int) -> dict[str, list[float]]:
    """Run rounds in random order, the same on all processes; a turn's stall is the slowest one's."""
    order, names = random.Random(0), list(turns)
    for name in names:
        if FIRST not in name:
            turns[name]()  # what is kept from save to save is there from now on
    stalls: dict[str, list[float]] = {name: [] for name in turns}
    for number in range(num_rounds):
        order.shuffle(names)
        for name in names:
            if FIRST in name and number % 3:
                continue  # it is told, not claimed, and takes long
            torch.distributed.barrier()
            stall = torch.tensor(turns[name](), dtype=torch.float64)
            torch.distributed.all_reduce(stall, op=torch.distributed.ReduceOp.MAX)
            stalls[name].append(stall.item())
    return stalls


def work(rank: int, size: int, root: Path, options: Any, answers: Any) -> None:
    from truestep.run.checkpoint import Crew

    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(max(1, torch.get_num_threads() // size))
    place = {"init_method": f"file://{root}/meet", "rank": rank, "world_size": size}
    torch.distributed.init_process_group("gloo", **place, timeout=timedelta(minutes=5))
    group = torch.distributed.new_group(backend="gloo")
    state = make_state(options.params, is_sharded=size > 1)
    ours, ours_first = make_ours(state, root, Crew(rank=rank, size=size, group=group))
    kept, first, plain = make_dcp(state, root, group)
    turns = {OURS: ours, DCP: kept, DCP_PLAIN: plain, TORCH: make_torch(state, root)}
    turns |= {OURS + FIRST: ours_first, DCP + FIRST: first}
    if size > 1:
        del turns[TORCH]  # it would gather the whole model on each process, or pickle its shards
    stalls = take_turns(turns, options.rounds)
    if rank == 0:
        answers.put(stalls)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def run(size: int, options: Any) -> dict[str, list[float]]:
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    with tempfile.TemporaryDirectory(dir=options.folder) as root:
        processes = [
            context.Process(target=work, args=(rank, size, Path(root), options, answers), daemon=True)
            for rank in range(size)
        ]
        for process in processes:
            process.start()
        stalls: dict[str, list[float]] = answers.get(timeout=options.timeout)
        for process in processes:
            process.join()
    return stalls


def sheet(title: str, stalls: dict[str, list[float]]) -> measure.Sheet:
    rows = []
    for name, seconds in stalls.items():
        spread = measure.spread([1000 * second for second in seconds])
        row = {"save": name, "stall ms": spread.median, "from": spread.low, "to": spread.high}
        rows.append({**row, "least": 1000 * min(seconds)})
    return measure.Sheet(title=title, rows=rows, note="Median, quartiles and least of the rounds.")


def compare(text: str, stalls: dict[str, list[float]], names: tuple[str, str], limit: float) -> measure.Claim:
    """The ratio of two stalls in the same round: what slows the machine meets both."""
    pairs = zip(stalls[names[0]], stalls[names[1]], strict=True)
    ratio = measure.spread([ours / theirs for ours, theirs in pairs])
    return measure.Claim(text=text, found=ratio.median, limit=limit, error=ratio.error, unit="times")


def main() -> int:
    """Measure, print, and return 0 if every claim holds."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--params", type=int, default=100_000_000, help="of the model, 12 bytes of state each"
    )
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--folder", help="on the disk to write to, emptied again (default: the system's own)")
    parser.add_argument("--timeout", type=float, default=1500.0, help="seconds for each number of processes")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    options = parser.parse_args()
    alone, two = run(1, options), run(2, options)
    title = f"Stall of the loop, state of {12 * options.params / 1e9:.3g} GB"
    claims = [
        compare("one process, second save on: ours to DCP's", alone, (OURS, DCP), MOST_OF_DCP),
        compare("one process, second save on: ours to torch.save's", alone, (OURS, TORCH), MOST_OF_TORCH),
        compare("FSDP2 on two, second save on: ours to DCP's", two, (OURS, DCP), MOST_OF_DCP),
    ]
    sheets = [sheet(f"{title}, one process", alone), sheet(f"{title}, sharded over two processes", two)]
    return measure.report("snapshot_cost", sheets=sheets, claims=claims, as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
