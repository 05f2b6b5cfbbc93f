"""Models cut short: the model's own forward, run up to one layer.

Owns stopping there. The layers stay where they are, and are the same objects as in the model.
"""

from typing import Any

from torch import nn

from truestep.errors import UsageError
from truestep.model.names import select
from truestep.model.tables import shortened


class _Reached(BaseException):
    """Carries the value out of a forward; no Exception, so that no `except Exception` on the way stops it."""

    def __init__(self, owner: object, value: Any) -> None:
        self.owner = owner
        self.value = value


class _Whole:
    """Holds the model where neither torch nor `unregistered` takes it for a part of the cut one."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model


class Cut(nn.Module):
    """A model that stops after (or before) one of its layers. Made by `cut`.

    Parameters, buffers and submodules are the model's own, under the same names.
    """

    def __init__(self, model: nn.Module, *, name: str, is_after: bool) -> None:
        super().__init__()
        # The very same dictionaries: what is moved, replaced or loaded in one is so in both.
        self._modules = model._modules
        self._parameters = model._parameters
        self._buffers = model._buffers
        self._non_persistent_buffers_set = model._non_persistent_buffers_set
        self._whole = _Whole(model)
        self._place = name
        self._is_after = is_after
        self.training = model.training

    def train(self, mode: bool = True) -> "Cut":
        """Set the mode of the whole model."""
        self._whole.model.train(mode)
        self.training = mode
        return self

    def extra_repr(self) -> str:
        """Return where the model is cut."""
        return f"{'after' if self._is_after else 'before'}={self._place!r}"

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model's own forward up to the layer, and return what the layer returned, or was given."""
        model = self._whole.model
        layer = model.get_submodule(self._place)

        def stop_after(_layer: nn.Module, _inputs: Any, output: Any) -> None:
            raise _Reached(self, output)

        def stop_before(_layer: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
            values = (*inputs, *named.values())
            raise _Reached(self, values[0] if len(values) == 1 else values)

        if self._is_after:
            handle = layer.register_forward_hook(stop_after)
        else:
            handle = layer.register_forward_pre_hook(stop_before, with_kwargs=True)
        try:
            model(*args, **kwargs)
        except _Reached as reached:
            if reached.owner is not self:
                raise
            return reached.value
        finally:
            handle.remove()
        raise UsageError(
            f"{self._place} did not run in this forward, so there is nothing to return. "
            "Cut at a layer that runs for these inputs."
        )


def cut(model: nn.Module, *, after: str | None = None, before: str | None = None) -> Cut:
    """Return the model up to one layer: its own `forward` runs, and stops there.

    `after` gives what the named layer returns, `before` what it is given: `before="fc"` are the features that
    enter the last layer, after whatever `forward` did to them. Layers behind do not run. Gradients flow as in
    the model, and weights, names and `state_dict` are the model's own. A layer that runs several times is cut
    at the first.

    >>> import torch
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> features = cut(model, before="2")
    >>> features(torch.zeros(1, 4)).shape
    torch.Size([1, 8])
    >>> list(features.state_dict()) == list(model.state_dict())
    True
    """
    if (after is None) == (before is None):
        raise UsageError("pass one of after='layer' and before='layer': where is the model to be cut?")
    place = after if before is None else before
    names = list(select(model, place or ""))
    if names != [place] or not place:
        raise UsageError(
            f"{place!r} has to be the name of one module inside the model, and stands for "
            f"{shortened(names) if names != [''] else 'the whole model'}. Pass one name."
        )
    return Cut(model, name=names[0], is_after=before is None)
