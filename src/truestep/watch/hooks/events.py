"""Events: the functions of torch, NumPy and Python that are observed in every script, in one table.

Owns the rows, by the module whose import brings the functions. Observers are methods of a family: one object
for each class and tape. What only one rule or experiment needs is observed by a row of its own, beside it.
"""

from importlib import import_module
from itertools import groupby

from truestep.watch.hooks.table import WINDOW, Hook, put
from truestep.watch.script.tape import Tape
from truestep.watch.script.under_way import CALLS, GOES_BACK

_LOADER = "torch.utils.data.dataloader"
_STATEFUL = "torchdata.stateful_dataloader.stateful_dataloader"
_SHARDED = "torch.distributed.fsdp._fully_shard"
_SHARDING = f"{_SHARDED}._fully_shard"
_SCHEDULERS = (
    *("LRScheduler", "ChainedScheduler", "CosineAnnealingWarmRestarts", "ReduceLROnPlateau"),
    "SequentialLR",
)
"""Those of torch that have a step of their own; others inherit it."""


def _seed(target: str, how: str, also: tuple[str, ...] = ()) -> Hook:
    # Recomputing in a backward pass sets states too.
    given = (target.partition(".")[0], how)
    return Hook(target, "seeds:Seeds.observe", also=also, given=given, is_outermost=True)


def _zero(target: str, kind: str) -> Hook:
    act = "gradients:Gradients.observe_zero"
    return Hook(target, act, given=(kind,), is_outermost=True, rank=CALLS, when=WINDOW)


def _clip(how: str) -> Hook:
    target, also = (f"torch.nn.utils.{home}clip_grad_{how}_" for home in ("clip_grad.", ""))
    act = "gradients:Gradients.observe_clip"
    return Hook(target, act, also=(also,), given=(how,), rank=CALLS, when=WINDOW)


def _pass(how: str) -> Hook:
    act = "backward:Backward.observe"
    return Hook(f"torch.autograd.{how}", act, given=(how,), rank=GOES_BACK, when=WINDOW)


def _file(target: str, how: str, given: tuple[str, int | None], also: tuple[str, ...] = ()) -> Hook:
    return Hook(target, f"files:Files.observe_{how}", also=also, given=given)


def _restore(target: str, what: str) -> Hook:
    return Hook(f"{target}.load_state_dict", "files:Files.observe_restore", given=(what,))


EVENTS = {
    "torch": (
        # Steps of optimizers are observed by torch's own hooks: see `steps`.
        _zero("torch.optim.Optimizer.zero_grad", "optimizer"),
        _zero("torch.nn.Module.zero_grad", "model"),
        Hook("torch.amp.GradScaler.unscale_", "gradients:Gradients.observe_unscale", rank=CALLS, when=WINDOW),
        _clip("norm"),
        _clip("value"),
        Hook("torch.utils.data.DataLoader.__iter__", "data:Loaders.observe_epoch"),
        Hook(f"{_LOADER}._BaseDataLoaderIter.__next__", "data:Loaders.observe_batch", when=WINDOW),
        Hook("torch.utils.data.DistributedSampler.set_epoch", "data:Loaders.observe_set_epoch"),
        Hook(
            "torch.nn.Module.__call__",
            "forward:Forward.observe_call",
            is_outermost=True,
            rank=CALLS,
            when=WINDOW,
        ),
        Hook("torch.nn.Module.train", "forward:Forward.observe_train", is_outermost=True, rank=CALLS),
        _pass("backward"),
        _pass("grad"),
        *(
            Hook(f"torch.optim.lr_scheduler.{kind}.step", "scheduler:Schedulers.observe", rank=CALLS)
            for kind in _SCHEDULERS
        ),
        _file("torch.serialization.save", "save", ("torch", 1), ("torch.save",)),
        _file("torch.serialization.load", "load", ("torch", 0), ("torch.load",)),
        _restore("torch.nn.Module", "model"),
        _restore("torch.optim.Optimizer", "optimizer"),
        _restore("torch.optim.lr_scheduler.LRScheduler", "scheduler"),
        _seed("torch.random.manual_seed", "seed", ("torch.manual_seed",)),
        _seed("torch.random.seed", "fresh", ("torch.seed",)),
        _seed("torch.random.set_rng_state", "state", ("torch.set_rng_state",)),
        Hook(
            "torch.distributed.distributed_c10d.init_process_group",
            "setup:Setup.observe_group",
            also=("torch.distributed.init_process_group",),
            is_required=False,
        ),
        Hook("torch.compile", "setup:Setup.observe_compile"),
        Hook(
            "torch.nn.parallel.DistributedDataParallel.__init__",
            "setup:Setup.observe_parallel",
            given=("DistributedDataParallel",),
            is_required=False,
        ),
        Hook("torch.nn.DataParallel.__init__", "setup:Setup.observe_parallel", given=("DataParallel",)),
    ),
    "random": (_seed("random.seed", "seed"), _seed("random.setstate", "state")),
    "numpy": (
        _seed("numpy.random.seed", "seed"),
        _seed("numpy.random.set_state", "state"),
        _seed("numpy.random.default_rng", "new"),
    ),
    "truestep.base.rng": (Hook("truestep.base.rng.seed_generators", "seeds:Seeds.observe_ours"),),
    _STATEFUL: (  # torchdata's loader has iterators of its own
        Hook(f"{_STATEFUL}.StatefulDataLoader.__iter__", "data:Loaders.observe_epoch"),
        Hook(f"{_STATEFUL}._BaseDataLoaderIter.__next__", "data:Loaders.observe_batch", when=WINDOW),
    ),
    "safetensors.torch": (
        _file("safetensors.torch.save_file", "save", ("safetensors", 1)),
        _file("safetensors.torch.load_file", "load", ("safetensors", 0)),
    ),
    "safetensors.numpy": (
        _file("safetensors.numpy.save_file", "save", ("safetensors", 1)),
        _file("safetensors.numpy.load_file", "load", ("safetensors", 0)),
    ),
    "torch.distributed.checkpoint": tuple(
        _file(f"torch.distributed.checkpoint.{name}", how, ("distributed", None))
        for name, how in (("save", "save"), ("async_save", "save"), ("load", "load"))
    ),
    _SHARDING: (
        Hook(f"{_SHARDING}.fully_shard", "setup:Setup.observe_sharding"),
        # Where these were imported already. Otherwise they will take the function as it is then.
        Hook(f"{_SHARDED}.fully_shard", "setup:Setup.observe_sharding", is_required=False),
        Hook("torch.distributed.fsdp.fully_shard", "setup:Setup.observe_sharding", is_required=False),
    ),
    "numpy:digests": tuple(  # not a module: only where digests are kept
        _file(f"numpy.{name}", "save", ("numpy", 0))
        for name in ("save", "savez", "savez_compressed", "savetxt")
    ),
}
"""By the module whose import brings the functions."""


def put_events(tape: Tape, module: str) -> None:
    """Put the rows of a module in place; a family that cannot begin is missing, and the script goes on."""
    for name, rows in groupby(EVENTS.get(module, ()), key=lambda hook: str(hook.act).rpartition(".")[0]):
        tape.attempt(_put_family, name, [*rows], name=name)


def _put_family(tape: Tape, name: str, rows: list[Hook]) -> None:
    if name not in tape.families:
        home, _, kind = name.partition(":")
        tape.families[name] = getattr(import_module(f"truestep.watch.hooks.{home}"), kind)(tape)
    put(tape, rows, tape.families[name])
