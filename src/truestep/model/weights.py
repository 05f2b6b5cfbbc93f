"""Weight files: tensors by name from safetensors or torch files, single, in parts or in folders.

Owns that nothing in a file is ever run. Which tensor belongs where in a model is up to others.
"""

import pickle
import pickletools
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from truestep import plainfile
from truestep.errors import UsageError

_TORCH = (".pt", ".pth", ".bin", ".ckpt", ".tar")
_ENDINGS = f".safetensors, {', '.join(_TORCH[:-1])} or {_TORCH[-1]}"
"""Of the files that are read, in words."""
_IN_FOLDERS = (
    *("*.safetensors.index.json", "*.safetensors"),
    *(f"*{end}.index.json" for end in _TORCH),
    *(f"*{end}" for end in _TORCH),
    "*.index.json",  # last: Flax and TensorFlow write such a file beside torch's weights
)
_SHOWN = 8
_MAX_NAME = 255
"""Longer names of files there are not."""
_MAX_PICKLES, _MAX_PICKLE_BYTES = 8, 8 << 20
"""Looked at to name what is in a refused file. torch writes up to five, most of them of a few kilobytes."""
_DAMAGE = (ValueError, IndexError, OverflowError, zipfile.BadZipFile)


def read_weights(path: Path) -> Any:
    """Return what a file or folder holds, on the CPU: tensors by name, or a nest that contains them."""
    if path.is_dir():
        path = _in_folder(path)
    if not path.is_file():
        raise UsageError(f"there is no file {path}. Pass the path of a {_ENDINGS} file.")
    if path.name.endswith(".index.json"):
        return _read_parts(path)
    return _read_safetensors(path) if path.suffix == ".safetensors" else _read_torch(path)


def _in_folder(folder: Path) -> Path:
    for pattern in _IN_FOLDERS:
        found = sorted(folder.glob(pattern))
        if len(found) > 1:
            names = ", ".join(path.name for path in found[:_SHOWN])
            raise UsageError(f"{folder} holds several weight files: {names}. Pass the path of one of them.")
        if found:
            return found[0]
    raise UsageError(f"{folder} holds no weight file. Pass a folder with a {_ENDINGS} file.")


def _read_parts(index: Path) -> dict[str, torch.Tensor]:
    try:
        content = plainfile.read_json(index)
    except (OSError, ValueError) as error:
        raise UsageError(f"{index} cannot be read as JSON: {error}. Download or save it again.") from error
    listed = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(listed, dict) or not all(isinstance(name, str) for name in listed.values()):
        raise UsageError(f"{index} has no 'weight_map'. Pass the index of a file that was saved in parts.")
    tensors: dict[str, torch.Tensor] = {}
    for name in sorted(set(listed.values())):
        # An index is somebody else's text: it may name files beside itself only.
        if Path(name).name != name or name.endswith(".index.json"):
            raise UsageError(f"{index.name} names {name!r}, which is not a file beside it. It was not read.")
        if len(name) > _MAX_NAME or not (index.parent / name).is_file():
            raise UsageError(f"{index.name} names {name[:_MAX_NAME]}, which is missing. Download it again.")
        part = read_weights(index.parent / name)
        if not isinstance(part, Mapping):
            raise UsageError(
                f"{name}, a part of {index.name}, holds a {type(part).__name__}, not tensors by name. "
                "Download or save it again."
            )
        tensors.update(part)
    lost = sorted(set(listed) - set(tensors))
    if lost:
        raise UsageError(
            f"{index.name} lists {len(lost)} tensors that its files lack: {lost[0]}. Download them again."
        )
    return tensors


def _read_safetensors(path: Path) -> dict[str, torch.Tensor]:
    try:
        return load_file(path)
    except Exception as error:  # whatever a bad file does to its reader
        raise UsageError(
            f"{path} is not a complete safetensors file: {error}. Download or save it again."
        ) from error


def _read_torch(path: Path) -> Any:
    is_zip = _is_zip(path)
    if is_zip and _is_compressed(path):
        raise UsageError(
            f"{path} has compressed parts, which torch.save does not write. It was not read: a few bytes of "
            f"it may fill the memory. If you trust it, load it with torch.load and save it again."
        )
    try:
        with warnings.catch_warnings():
            # A pickle of somebody else's making is refused below, with more to say than this.
            warnings.filterwarnings("ignore", message="Detected pickle protocol")
            return torch.load(path, map_location="cpu", weights_only=True, mmap=is_zip)
    except pickle.UnpicklingError as error:
        raise UsageError(_refusal(path, is_zip=is_zip)) from error
    except Exception as error:  # whatever a bad file does to its reader
        raise UsageError(f"{path} is not a torch file: {error}. Download or save it again.") from error


def _refusal(path: Path, *, is_zip: bool) -> str:
    found: list[str] = []
    with suppress(Exception):  # damaged: what was seen is enough
        found.extend(_classes(path, is_zip=is_zip))
    found = sorted(set(found))
    if not found:
        return f"{path} is not a file that torch.save has written, or it is damaged. It was not read."
    names = ", ".join(found[:_SHOWN]) + (" and more" if len(found) > _SHOWN else "")
    return (
        f"{path} holds pickled objects, not only tensors. Reading it would run code of: {names}. "
        "It was not read. If you trust it, convert it once, where these classes can be imported: "
        f"torch.save(torch.load({path.name!r}, weights_only=False).state_dict(), 'weights.pt')"
    )


def _classes(path: Path, *, is_zip: bool) -> Iterator[str]:
    """Yield the names that a pickle would import, beside torch's own harmless ones; nothing is imported."""
    types = [item for item in vars(torch).values() if isinstance(item, type)]
    known = {f"{item.__module__}.{item.__qualname__}" for item in types}
    known |= {"collections.OrderedDict", "__builtin__.set", "builtins.set"}
    for text in _pickles(path, is_zip=is_zip):
        for name in _imports(text):
            if name not in known and not name.startswith("torch._utils._rebuild"):
                yield name


def _imports(text: bytes) -> Iterator[str]:
    """Yield what a pickle names as `module.attribute`, by following its strings and where it keeps them."""
    strings: list[str] = []
    memo: dict[int, str] = {}
    num_kept = 0
    for code, argument, _position in pickletools.genops(text):
        if code.name == "GLOBAL":
            yield str(argument).replace(" ", ".")
        elif code.name == "STACK_GLOBAL":
            yield ".".join(strings[-2:])
        elif code.name == "MEMOIZE" or code.name.endswith("PUT"):
            memo[num_kept if argument is None else int(argument)] = strings[-1] if strings else ""
            num_kept += 1
        elif code.name.endswith("GET") and argument is not None:
            strings.append(memo.get(int(argument), ""))
        elif isinstance(argument, str):
            strings.append(argument)


def _pickles(path: Path, *, is_zip: bool) -> Iterator[bytes]:
    if is_zip:
        with zipfile.ZipFile(path) as archive:
            for name in [name for name in archive.namelist() if name.endswith(".pkl")][:_MAX_PICKLES]:
                with archive.open(name) as file:
                    yield file.read(_MAX_PICKLE_BYTES)
        return
    # The old format is several pickles, one after the other, and then raw numbers.
    with path.open("rb") as file:
        rest = file.read(_MAX_PICKLE_BYTES)
    for _ in range(_MAX_PICKLES):
        try:
            *_, (_code, _argument, end) = pickletools.genops(rest)
        except _DAMAGE:
            return
        yield rest[: (end or 0) + 1]
        rest = rest[(end or 0) + 1 :]


def _is_zip(path: Path) -> bool:
    try:
        return zipfile.is_zipfile(path)
    except zipfile.BadZipFile:  # one that says it goes on elsewhere; torch says what is wrong with it
        return False


def _is_compressed(path: Path) -> bool:
    try:
        with zipfile.ZipFile(path) as archive:
            return any(item.compress_type != zipfile.ZIP_STORED for item in archive.infolist())
    except Exception:  # noqa: BLE001 - torch says what is wrong with it
        return False


def find_states(content: Any, *, depth: int = 2) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the mappings of names to tensors in what a file holds, with their keys ("" for all of it)."""
    if not isinstance(content, Mapping):
        return
    has_names = all(isinstance(key, str) for key in content)
    if has_names and any(isinstance(value, torch.Tensor) for value in content.values()):
        yield "", content
    if depth:
        for key, value in content.items():
            for inner, state in find_states(value, depth=depth - 1):
                yield f"{key}.{inner}" if inner else str(key), state
