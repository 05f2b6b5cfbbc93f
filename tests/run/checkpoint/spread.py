"""A small model sharded by FSDP2 whose every bit is known, for the tests of snapshots that many write."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from truestep.base.bits import digest
from truestep.run.checkpoint import BackgroundSaver, Crew, Snapshot, Store, targets_of

RUN = "run-a"


class Net(nn.Module):
    """Tied weights, 11 rows (which 2, 3 and 4 do not divide), 2 rows (fewer than 3 and 4), and buffers."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, width)
        self.norm = nn.BatchNorm1d(width)
        self.few = nn.Linear(width, 2)
        self.head = nn.Linear(width, 11, bias=False)
        self.head.weight = self.embedding.weight


def bits(name: str, shape: Any, cursor: int) -> torch.Tensor:
    """Any bit pattern, nan and infinity included, from a name and a cursor."""
    generator = torch.Generator().manual_seed(cursor * 1000 + sum(name.encode()))
    pattern = torch.randint(-(2**31), 2**31, tuple(shape), generator=generator)
    return pattern.to(torch.int32).view(torch.float32)


def make(cursor: int | None, *, width: int = 4) -> dict[str, Any]:
    """Return a sharded model and its optimizer, fresh or in the state that belongs to a cursor."""
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor, distribute_tensor

    model = Net(width)
    fully_shard(model)
    groups = [{"params": model.embedding.parameters(), "weight_decay": 0.1}]
    groups += [{"params": [*model.norm.parameters(), *model.few.parameters()]}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, foreach=True)
    if cursor is not None:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.grad = torch.zeros_like(parameter)
            optimizer.step()
            for name, tensor in named_tensors(model, optimizer):
                if isinstance(tensor, DTensor):
                    whole = bits(name, tensor.shape, cursor)
                    mesh, placements = tensor.device_mesh, tensor.placements
                    known = distribute_tensor(whole, mesh, placements, src_data_rank=None)
                    tensor.to_local().copy_(known.to_local())
                elif tensor.dtype == torch.float32:
                    tensor.copy_(bits(name, tensor.shape, cursor))
    return {"model": model, "optimizer": optimizer}


def named_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[tuple[str, torch.Tensor]]:
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    named = [*model.named_parameters(), *model.named_buffers()]
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            state = optimizer.state[parameter].items()
            named += [(f"{names[id(parameter)]}:{key}", tensor) for key, tensor in state]
    return named


def states_of(tracked: dict[str, Any], cursor: int) -> dict[str, Any]:
    return {"tracked": {name: item.state_dict() for name, item in tracked.items()}, "count": cursor}


def snapshot_of(tracked: dict[str, Any], cursor: int) -> Snapshot:
    return Snapshot(cursor=cursor, states=states_of(tracked, cursor), facts={"cursor": cursor})


def find_wrong(states: dict[str, Any], cursor: int) -> list[str]:
    """Name the tensors in a state read back, whole or spread, that do not have the bits of a cursor."""
    model = states["tracked"]["model"]
    few = ["norm.weight", "norm.bias", "few.weight", "few.bias"]
    parameters = ["embedding.weight", *few]
    expected = {name: model[name] for name in [*parameters, "norm.running_mean", "norm.running_var"]}
    optimizer = states["tracked"]["optimizer"]["state"]
    for index, name in enumerate(parameters):
        expected |= {f"{name}:{key}": tensor for key, tensor in optimizer[index].items()}
    wrong = []
    for name, tensor in expected.items():
        whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
        if digest([("", whole)]) != digest([("", bits(name, whole.shape, cursor))]):
            wrong.append(name)
    if states["count"] != cursor or model["norm.num_batches_tracked"] != 0:
        wrong.append("the plain values")
    if model["head.weight"] is not model["embedding.weight"]:
        wrong.append("the tie")
    return wrong


def crew(timeout_s: float = 60.0) -> Crew:
    """Return the crew of all processes of the group that the test started, with a group of its own."""
    group = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s))
    return Crew(rank=dist.get_rank(), size=dist.get_world_size(), group=group)


def store_at(folder: str | Path, *, keep: int = 2, timeout_s: float = 60.0) -> Store:
    return Store(Path(folder), run_id=RUN, keep=keep, crew=crew(timeout_s))


def save(folder: str, *cursors: int) -> None:
    """Save cursors in turn in the background; each model goes wrong as soon as it is submitted."""
    saver = BackgroundSaver(store_at(folder))
    for cursor in cursors:
        tracked = make(cursor)
        saver.submit(snapshot_of(tracked, cursor))
        for parameter in tracked["model"].parameters():
            parameter.detach().to_local().zero_()
    saver.close()


def load(*folders: str) -> list[Any]:
    """Load each folder into a fresh sharded model; return cursor, damage and what is wrong with each."""
    found = []
    for folder in folders:
        tracked = make(None)
        target = targets_of(tracked, under=("tracked",))
        loaded, damages = store_at(folder).load_newest(target=target)
        if loaded is None:
            found.append((None, [str(damage) for damage in damages], []))
            continue
        for name, item in tracked.items():
            item.load_state_dict(loaded.states["tracked"][name])
        # The bits are compared after the objects have them; the tie is what the snapshot says.
        wrong = find_wrong(loaded.states, loaded.cursor)
        states = states_of(tracked, loaded.cursor)
        states["tracked"]["model"]["head.weight"] = states["tracked"]["model"]["embedding.weight"]
        wrong += find_wrong(states, loaded.cursor)
        found.append((loaded.cursor, [str(damage) for damage in damages], wrong))
    return found
