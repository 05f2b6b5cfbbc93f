"""Last positions of padded sequences, which are padding for all but the longest.

Owns following what `pad_packed_sequence` returns, in the steps whose operations are looked at.
"""

from typing import Any

from truestep.watch.evidence.facts.passes import PaddedEndRead
from truestep.watch.hooks.table import Hook, Observation, put
from truestep.watch.inspect.data.samples import is_readable
from truestep.watch.script.host import on_host
from truestep.watch.script.tape import Tape

_AXES = 3


def watch(tape: Tape) -> None:
    """Note where the last position of padded outputs is read."""
    if tape.plan.operations is not None:
        ends = _Ends(tape)
        put(tape, [Hook("torch.nn.utils.rnn.pad_packed_sequence", _Ends.pad)], ends)
        tape.read_operation("aten.select.int", ends.choose)
        tape.attend(ends, "counted", near=True)


class _Ends:
    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._axis_of: dict[int, int] = {}
        """By the address of padded outputs of unequal length: the axis of their positions."""

    def counted(self) -> None:
        self._axis_of.clear()

    def pad(self, *args: Any, **kwargs: Any) -> Observation:
        """Packed sequences are padded."""
        result = yield
        if self._tape.recorder is not None and self._tape.recorder.is_open:
            is_batch_first = bool(args[1] if len(args) > 1 else kwargs.get("batch_first"))
            self._tape.call_listener(self._keep, result, int(is_batch_first))

    def _keep(self, result: Any, axis: int) -> None:
        padded, lengths = result
        if padded.dim() == _AXES and int(lengths.min()) < int(lengths.max()):
            self._axis_of[padded.untyped_storage().data_ptr()] = axis

    def choose(self, _index: int, args: tuple[Any, ...], _kwargs: Any, result: Any) -> None:
        """Read the last position, if that is what is chosen: zeros are no state."""
        given, axis, place = args[:3]
        if not self._axis_of or given.dim() != _AXES or not is_readable(result):
            return
        # A loop over all positions counts them from 0, and may use a mask.
        if place != -1 or self._axis_of.get(given.untyped_storage().data_ptr()) != axis % _AXES:
            return
        num_ended = int((on_host(result.detach()) == 0).all(1).sum())
        if 0 < num_ended < len(result):
            self._tape.note(PaddedEndRead(len(result), num_ended, given.shape[axis]))
