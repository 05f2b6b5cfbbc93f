"""Inside the script's process: one function per knob, which turns it whatever the script sets itself.

Owns how arguments of the script's calls are edited on their way. Which values make sense is `knobs`'.
"""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from truestep.base.memory import keep_freed
from truestep.tune.in_script.inside import on_model
from truestep.watch.hooks.table import Function, Hook, bound, calling_module, put, resolve
from truestep.watch.script.tape import Tape

Change = Callable[[dict[str, Any]], None]
"""Edits arguments by name, in place; those that the caller left out are absent."""

_LOADER = "torch.utils.data.DataLoader.__init__"
_OURS = "truestep.run.data"
"""Our own loaders build DataLoaders and switch threads for a moment: that is not the script's doing."""


def prefetch(value: int, tape: Tape) -> None:
    """Build each DataLoader that has workers with this number."""
    _edit_working_loaders(tape, prefetch_factor=value)


def persistent(value: bool, tape: Tape) -> None:
    """Build each DataLoader that has workers so."""
    _edit_working_loaders(tape, persistent_workers=value)


def pin_memory(value: bool, _tape: Tape) -> None:
    """Build each DataLoader so."""
    _rewrite(_LOADER, lambda arguments: arguments.update(pin_memory=value))


def fused(value: bool, _tape: Tape) -> None:
    """Make each optimizer that can so."""
    _edit_optimizers("fused", lambda arguments: arguments.update(fused=value, foreach=None))


def foreach(value: bool, _tape: Tape) -> None:
    """Make each optimizer that can so."""

    def change(arguments: dict[str, Any]) -> None:
        arguments["foreach"] = value
        if value and arguments.get("fused"):
            arguments["fused"] = False

    _edit_optimizers("foreach", change)


def threads(value: int, _tape: Tape) -> None:
    """Set it, whatever the script sets later."""
    _fix_argument("torch.set_num_threads", value)


def matmul_precision(value: str, _tape: Tape) -> None:
    """Set it, whatever the script sets later."""
    _fix_argument("torch.set_float32_matmul_precision", value)


def cudnn_benchmark(value: bool, tape: Tape) -> None:
    """Turn it on as each step begins: an assignment of the script's own cannot be caught."""

    def turn(*_: Any) -> None:
        torch.backends.cudnn.benchmark = value

    turn()
    tape.listen(forward_begins=turn)


def allocator(_value: str, _tape: Tape) -> None:
    """Tell glibc to keep freed memory."""
    keep_freed()


def autocast(_value: str, tape: Tape) -> None:
    """Run each trained model's forward under autocast in bfloat16; what it returns is float32 again."""
    on_model(tape, _run_in_bf16)


def _run_in_bf16(module: nn.Module) -> None:
    from truestep.run.train.place import Autocast  # noqa: PLC0415 - not every script pays for importing it

    device = next(module.parameters()).device
    module.forward = Autocast(module.forward, device_type=device.type, dtype=torch.bfloat16)


def channels_last(_value: bool, tape: Tape) -> None:
    """Lay out the weights of each trained model with Conv2d, and every image that it is given."""
    on_model(tape, _lay_out)


def _lay_out(module: nn.Module) -> None:
    if any(isinstance(part, nn.Conv2d) for part in module.modules()):
        module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        module.register_forward_pre_hook(lay_out_images, prepend=True, with_kwargs=True)


def lay_out_images(  # limits: torch calls it like this
    _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments with images in another layout. It has a name: models with it are pickled."""
    return tuple(map(_laid_out, args)), {name: _laid_out(item) for name, item in kwargs.items()}


def _laid_out(item: Any) -> Any:
    if isinstance(item, torch.Tensor) and item.dim() == 4 and item.is_floating_point():
        return item.contiguous(memory_format=torch.channels_last)
    return item


def compile_model(_value: bool, tape: Tape) -> None:
    """Compile each trained model just before its first forward pass, unless it is."""
    on_model(tape, _compile)


def _compile(module: nn.Module) -> None:
    if module._compiled_call_impl is not None or type(module).__name__ == "OptimizedModule":
        return
    if type(module).__module__.startswith("torch.nn."):
        module._compiled_call_impl = torch.compile(_framed(module))
    else:
        module.compile()


def _framed(module: nn.Module) -> Callable[..., Any]:
    """Return its call in a frame of ours: the compiler skips those of torch's modules (pytorch#150915)."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return module._call_impl(*args, **kwargs)

    return call


def _rewrite(target: str, change: Change) -> None:
    """Let `change` edit the arguments of each call of a function, unless our own loaders make it."""
    put(None, [Hook(target, _rewritten, given=(change,), changes=True)])


def _rewritten(change: Change, act: Function, /, *args: Any, **kwargs: Any) -> Any:
    given = bound(act, args, kwargs)
    if given is not None and not calling_module().startswith(_OURS):
        change(given.arguments)
        args, kwargs = given.args, given.kwargs
    return act(*args, **kwargs)


def _fix_argument(target: str, value: Any) -> None:
    """Call a switch with a value now, and with the same value wherever the script turns it again."""
    put(None, [Hook(target, _fixed, given=(value,), changes=True)])
    owner, name = resolve(target)
    getattr(owner, name)(value)


def _fixed(value: Any, act: Function, /, *args: Any, **kwargs: Any) -> Any:
    # torch turns switches for itself and back: in loader workers, while it compiles.
    is_script = not calling_module().startswith(("torch.", _OURS))
    return act(value) if is_script else act(*args, **kwargs)


def _edit_working_loaders(tape: Tape, **changed: Any) -> None:
    """Give arguments to each DataLoader that has, or will have, workers."""
    planned = tape.plan.workers

    def change(arguments: dict[str, Any]) -> None:
        if arguments.get("num_workers", 0) if planned is None else planned:
            arguments.update(changed)

    _rewrite(_LOADER, change)


def _edit_optimizers(argument: str, change: Change) -> None:
    """Let `change` edit how each of torch's optimizers that knows `argument` is made."""

    def change_unless_refused(arguments: dict[str, Any]) -> None:
        if not arguments.get("differentiable"):  # it excludes both
            change(arguments)

    for name, kind in vars(torch.optim).items():
        if not (isinstance(kind, type) and issubclass(kind, Optimizer)):
            continue
        if argument in inspect.signature(kind.__init__).parameters:
            _rewrite(f"torch.optim.{name}.__init__", change_unless_refused)
