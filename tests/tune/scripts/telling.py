"""What scripts tell of their own process, so that tests can see whether a knob was turned."""

import copy
import json
import pickle
import sys

import torch


class Probe:
    """Looks at a layer's passes, in training and in evaluation."""

    def __init__(self, layer):
        self.dtypes, self.num_passes, self.last_inputs = set(), 0, set()
        layer.register_forward_hook(self.look)

    def look(self, layer, args, output):
        if torch.compiler.is_compiling():
            return
        if torch.is_grad_enabled():
            self.num_passes += 1
            self.dtypes.add(str(output.dtype))
            if args[0].dim() == 4:
                is_last = args[0].is_contiguous(memory_format=torch.channels_last)
                self.last_inputs.add(is_last and not args[0].is_contiguous())


def tell(models=(), optimizers=(), loaders=(), probes=(), is_pickled=True, **more):
    """Print a line of JSON."""
    compiled = sys.modules.get("torch._dynamo.utils")
    facts = {
        "threads": torch.get_num_threads(),
        "matmul_precision": torch.get_float32_matmul_precision(),
        "fused": [group["fused"] for item in optimizers for group in item.param_groups],
        "foreach": [group["foreach"] for item in optimizers for group in item.param_groups],
        "workers": [loader.num_workers for loader in loaders],
        "prefetch": [loader.prefetch_factor for loader in loaders],
        "persistent": [loader.persistent_workers for loader in loaders],
        "graphs": compiled.counters["stats"]["unique_graphs"] if compiled else 0,
        "names": [list(model.state_dict()) for model in models],
        "is_whole": [is_whole(model, is_pickled=is_pickled) for model in models],
        "probes": [
            {name: sorted(item) if isinstance(item, set) else item for name, item in vars(probe).items()}
            for probe in probes
        ],
        **more,
    }
    print("told", json.dumps(facts))


def is_whole(model, *, is_pickled):
    """Whether a copy, and one that was pickled, have the same weights and are modules of their own."""
    copies = [copy.deepcopy(model)] + ([pickle.loads(pickle.dumps(model))] if is_pickled else [])
    for other in copies:
        forward = other.forward
        while not hasattr(forward, "__self__"):  # what was put before it must lead to its own
            forward = forward.forward
        same = all(map(torch.equal, model.state_dict().values(), other.state_dict().values()))
        if not same or forward.__self__ is not other:
            return False
    return True
