"""One safetensors file, written through `durable`; `chunks` reads it with the safetensors library.

Owns the bytes of tensors on disk. Leaves to `state` which tensors there are and what they stand for.
"""

import json
import struct
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch

from truestep.base.bits import bytes_of
from truestep.errors import UsageError
from truestep.run.checkpoint.durable import Written, write_file

CODES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e4m3fnuz: "F8_E4M3FNUZ",
    torch.float8_e5m2: "F8_E5M2",
    torch.float8_e5m2fnuz: "F8_E5M2FNUZ",
}
"""The dtypes that every safetensors release we accept can hold; `state` turns others into these."""

RESERVED = "__metadata__"
"""The one name that a safetensors header keeps for itself."""

_ALIGNMENT = 8


def write(path: Path, tensors: Mapping[str, torch.Tensor]) -> Written:
    """Write tensors as one safetensors file, flushed to the disk.

    The library's own writer hides the error number of a full disk, and offers no place between two writes
    where a test could kill it; the format is a length, a JSON header and the bytes.
    """
    if sys.byteorder != "little":
        raise UsageError(
            "snapshots can only be written on little-endian machines: safetensors is little-endian."
        )
    # The widest first: then every tensor starts at a multiple of its element size.
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    return write_file(path, _pieces({name: tensors[name] for name in names}))


def _pieces(tensors: Mapping[str, torch.Tensor]) -> Iterator[bytes | memoryview]:
    header: dict[str, object] = {}
    offset = 0
    for name, tensor in tensors.items():
        end = offset + tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": CODES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    yield struct.pack("<Q", len(text)) + text
    for tensor in tensors.values():
        if tensor.numel():
            yield bytes_of(tensor)
