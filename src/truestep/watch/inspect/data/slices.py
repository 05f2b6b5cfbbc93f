"""Labels that are cut from one long tensor, batch by batch and without a loader.

Owns telling from a batch's labels which part they are of what, and how the labels of the whole lie.
"""

import numpy as np
import torch
from torch import Tensor

from truestep.watch.evidence.facts.loading import Labels, LabelsSliced
from truestep.watch.inspect.data.labels import outline_labels
from truestep.watch.inspect.data.samples import array_of
from truestep.watch.script.host import on_host

_LEAST, _MAX_LENGTH, _LEAST_BATCHES = 4, 1 << 18, 6
_LABELS = frozenset((torch.int64, torch.int32, torch.uint8, torch.float32, torch.float64))


def read_slice(operation: int, target: Tensor) -> LabelsSliced | None:
    """Return where in its storage a batch's labels lie; for the first, how all that follow do."""
    is_flat = target.dim() == 1 or (target.dim() == 2 and target.shape[1] == 1)
    if type(target) is not Tensor or not is_flat or target.numel() < _LEAST or not target.is_contiguous():
        return None
    if target.is_meta or target.requires_grad or target.dtype not in _LABELS:
        return None
    storage, size = target.untyped_storage(), target.numel()
    length = storage.nbytes() // target.element_size()
    if not _LEAST_BATCHES * size <= length <= _MAX_LENGTH:
        return None
    offset = int(target.storage_offset())
    labels: list[Labels] = []
    if offset == 0:
        every = torch.empty(0, dtype=target.dtype, device=target.device).set_(storage, 0, (length,), (1,))
        whole = array_of(on_host(every))
        parts = np.split(whole[: length // size * size], length // size)
        outlines = [outline_labels(part) for part in parts]
        labels = [item for item in outlines if item is not None]
    return LabelsSliced(operation, offset, size, length, storage.data_ptr(), labels)
