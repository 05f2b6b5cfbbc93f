"""From what happened to what is told: the verdict on memory, and the sentences of one operation."""

from torch import Tensor

from truestep.tensor import meaning
from truestep.tensor.facts import Operation
from truestep.tensor.memory import is_same_memory
from truestep.tensor.trace import UNNAMED, Event, Names


def verdict(event: Event) -> tuple[str, str]:
    """Return what happened to memory, and the name of the tensor concerned."""
    if event.written:
        return "in place", event.before[event.written[0]].name
    if event.name.endswith("=") and event.before:
        return ("same" if event.name == "=" else "in place"), event.before[0].name
    if event.outputs:
        return _of_output(event)
    return ("new" if isinstance(event.value, Tensor) else "none"), ""


def _of_output(event: Event) -> tuple[str, str]:
    pairs = zip(event.inputs, event.before, strict=True)
    same = [facts.name for thing, facts in pairs if thing is event.outputs[0]]
    viewed = [event.before[at].name for at in event.shared if event.before[at].name != UNNAMED]
    viewed += [name for name, _ in event.sources[-1:]]
    if same:
        return "same", same[0]
    if viewed:
        return "view", viewed[0]
    if event.name not in meaning.COPYING or not event.before:
        return "new", ""
    copied = (
        [facts.name for facts in event.before] if event.name in meaning.JOINING else [event.before[0].name]
    )
    return "copy", _listed(list(dict.fromkeys(copied)))


def operation(event: Event, number: int, *, names: Names) -> Operation:
    """Tell one event: what was written, what it did to memory, shapes and autograd."""
    kind, of = verdict(event)
    aligned = meaning.alignment(event)
    return Operation(
        number=number,
        name=event.name,
        code=event.code,
        verdict=kind,
        of=of,
        inputs=tuple(event.before),
        outputs=tuple(event.after),
        notes=(*_memory_notes(event, names), *meaning.notes(event), *_autograd_notes(event)),
        warnings=(*meaning.warnings(event, aligned), *_broken_notes(event)),
        broadcast=aligned,
        reduction=meaning.reduction(event),
        inside=tuple(event.inside),
    )


def _memory_notes(event: Event, names: Names) -> list[str]:
    if isinstance(event.value, Tensor) and not event.outputs:
        return [f"its layout is {event.value.layout}: it has no strides, and more than one storage"]
    if event.name == "=":
        return ["an assignment copies nothing: two names for one tensor"]
    others = [name for thing in event.touched if (name := names.of(thing)) and not name.startswith("step ")]
    return [f"this also changes {_listed(others)}: elements are shared"] if others else []


def _listed(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _autograd_notes(event: Event) -> list[str]:
    made = next((facts for facts in event.after if facts.grad_fn is not None), None)
    is_given = bool(event.outputs) and any(thing is event.outputs[0] for thing in event.inputs)
    if made is None or (is_given and not event.written):
        return []
    kept = list(dict.fromkeys(_kept_name(event, tensor, slot) for slot, tensor, _ in event.saved))
    keeps = f" and keeps {_listed(kept)} for backward" if kept else ", keeps no tensor for backward"
    return [f"autograd records {made.grad_fn}{keeps}"]


def _kept_name(event: Event, tensor: Tensor, slot: str) -> str:
    for thing, facts in zip(event.inputs, event.before, strict=True):
        if is_same_memory(thing, tensor):
            return facts.name
    return "its result" if any(is_same_memory(thing, tensor) for thing in event.outputs) else slot


def _broken_notes(event: Event) -> list[str]:
    return [
        f"backward through {earlier.code!r} will raise: it kept a tensor for backward that this changes"
        for earlier in event.broken
    ]
