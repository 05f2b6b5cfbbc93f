"""Packing: every sequence in exactly one row, rows that lanes, workers and resume treat like any sample."""

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.optim import AdamW

import truestep as ts
from tests.processes import run_processes
from truestep import record
from truestep.errors import UsageError
from truestep.run.data import packed as packing

NUM_TOKENS = 40
LENGTHS = st.lists(st.integers(0, 12), min_size=1, max_size=60).filter(any)


def sentences(lengths: list[int]) -> list[list[int]]:
    """Sequences whose tokens say which sequence they belong to and where in it they stand."""
    return [[1000 * index + at for at in range(length)] for index, length in enumerate(lengths)]


def taken_apart(row: dict[str, torch.Tensor]) -> list[list[int]]:
    """The sequences of a row, after a look at all that the row says about itself."""
    tokens, segments, positions = row["tokens"], row["segments"], row["positions"]
    num_filled = int((segments > 0).sum())
    assert segments[:num_filled].all() and not segments[num_filled:].any()
    assert not positions[num_filled:].any()
    found = []
    for segment in range(1, int(segments.max()) + 1):
        at = (segments == segment).nonzero().flatten()
        assert torch.equal(at, torch.arange(int(at[0]), int(at[0]) + len(at)))
        assert torch.equal(positions[at], torch.arange(len(at)))
        found.append(tokens[at].tolist())
    return found


@given(LENGTHS, st.integers(12, 30), st.integers(0, 9))
def test_every_sequence_is_in_exactly_one_row_and_every_row_is_full_length(
    lengths: list[int], length: int, seed: int
) -> None:
    data = sentences(lengths)
    packed = ts.Packed(data, length=length, seed=seed, pad=-1)
    rows = [packed[place] for place in range(len(packed))]
    assert {name: tensor.shape for row in rows for name, tensor in row.items()} == dict.fromkeys(
        ("tokens", "segments", "positions"), (length,)
    )
    assert all((row["tokens"][row["segments"] == 0] == -1).all() for row in rows)
    found = [sequence for row in rows for sequence in taken_apart(row)]
    assert sorted(found) == [sequence for sequence in data if sequence]
    num_padding = sum(int((row["segments"] == 0).sum()) for row in rows)
    assert packed.waste == pytest.approx(num_padding / (len(rows) * length))


@given(LENGTHS, st.integers(1, 12), st.integers(0, 9))
def test_long_sequences_are_cut_into_pieces_that_together_are_the_whole(
    lengths: list[int], length: int, seed: int
) -> None:
    data = sentences(lengths)
    packed = ts.Packed(data, length=length, seed=seed, cut=True)
    pieces = sorted(piece for place in range(len(packed)) for piece in taken_apart(packed[place]))
    assert [token for piece in pieces for token in piece] == [
        token for sequence in data for token in sequence
    ]
    assert len(pieces) == sum(-(-each // length) for each in lengths)


def test_rows_depend_on_lengths_and_seed_alone() -> None:
    lengths = [int(each) for each in np.random.default_rng(1).integers(1, 20, 300)]
    data = sentences(lengths)
    rows = ts.digest_state([*map(dict, ts.Packed(data, length=32, seed=1))])
    torch.manual_seed(99)
    np.random.seed(99)
    assert ts.digest_state([*map(dict, ts.Packed(data, length=32, seed=1, lengths=lengths))]) == rows
    assert ts.digest_state([*map(dict, ts.Packed(data, length=32, seed=2))]) != rows
    tensors = [torch.tensor(sequence, dtype=torch.int32) for sequence in data]
    assert ts.digest_state([*map(dict, ts.Packed(tensors, length=32, seed=1))]) == rows


def test_this_version_of_the_rows_is_frozen() -> None:
    array = np.array([5, 3, 8, 1, 4, 4, 2, 7, 6, 2], dtype=np.int32)
    members, bounds = packing.compose(packing.Pieces(lengths=array, longest=10, first=None), seed=7, window=6)
    assert (packing.VERSION, members.tolist(), bounds.tolist()) == (
        1,
        [8, 5, 4, 1, 6, 9, 2, 3, 7, 0],
        [0, 2, 5, 6, 8, 9, 10],
    )


class File:
    """Token ids in one flat array on disk, as tokenizers write them, with other fields beside them."""

    content_id = "file 3"

    def __init__(self, path: Path, lengths: list[int]) -> None:
        np.arange(sum(lengths), dtype=np.uint16).tofile(path)
        self.tokens = np.memmap(path, dtype=np.uint16, mode="r")
        self.stops = np.cumsum(lengths)
        self.lengths = lengths

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> dict[str, Any]:
        stop = int(self.stops[index])
        tokens = self.tokens[stop - self.lengths[index] : stop]
        return {
            "input_ids": tokens,
            "labels": tokens.tolist(),
            "learned": tokens % 2 == 0,
            "weights": tokens / 2,
        }


class ManyAtOnce(File):
    def __getitem__(self, index: int) -> dict[str, Any]:
        assert index == 0, "__getitems__ is there to be used"
        return super().__getitem__(index)

    def __getitems__(self, indices: list[int]) -> list[dict[str, Any]]:
        return [File.__getitem__(self, index) for index in indices]


class FileAfterFile(File):
    def epoch_order(self, *, seed: int, epoch: int) -> None: ...


def test_a_dataset_that_is_read_file_after_file_is_refused(tmp_path: Path) -> None:
    data = FileAfterFile(tmp_path / "tokens.bin", [3])
    with pytest.raises(UsageError, match="scatter each row over all files of FileAfterFile"):
        ts.Packed(data, length=8, seed=1)


@pytest.mark.parametrize("kind", [File, ManyAtOnce])
def test_all_fields_are_packed_alike_and_keep_what_they_are(tmp_path: Path, kind: type[File]) -> None:
    data = kind(tmp_path / "tokens.bin", [3, 5, 4])
    packed = ts.Packed(
        data, length=10, seed=1, pad={"input_ids": 1, "labels": -100, "learned": 0, "weights": 0}
    )
    (first, second) = packed.__getitems__([0, 1])
    dtypes = {name: tensor.dtype for name, tensor in first.items()}
    whole = dict.fromkeys(("input_ids", "labels", "segments", "positions"), torch.int64)
    assert dtypes == whole | {"learned": torch.bool, "weights": torch.float64}
    assert first["input_ids"].tolist() == [3, 4, 5, 6, 7, 8, 9, 10, 11, 1]
    assert first["labels"].tolist() == [3, 4, 5, 6, 7, 8, 9, 10, 11, -100]
    assert first["weights"].tolist() == [1.5, 2, 2.5, 3, 3.5, 4, 4.5, 5, 5.5, 0]
    assert second["learned"].tolist() == [True, False, True] + [False] * 7


def test_the_recipe_names_what_rows_are_made_of(tmp_path: Path) -> None:
    def named(lengths: list[int], **changes: Any) -> Any:
        settings = {"length": 10, "seed": 1, **changes}
        packed = ts.Packed(File(tmp_path / "tokens.bin", lengths), **settings)
        return ts.Loader(packed, batch_size=1).recipe()["content"]

    first = named([3, 5, 4])
    assert first.startswith("file 3/packed 10 seed 1 ")
    others = [
        named([3, 4, 5]),
        named([3, 5, 4], seed=2),
        named([3, 5, 4], pad=9),
        named([3, 5, 4], length=11),
    ]
    assert named([3, 5, 4]) == first and len({first, *others}) == 5


def numbered(lengths: list[int], *, seed: int = 3) -> list[torch.Tensor]:
    made = torch.Generator().manual_seed(seed)
    return [torch.randint(1, NUM_TOKENS, (length,), generator=made) for length in lengths]


class Small(nn.Module):
    """A causal transformer of one layer that sees one sequence at a time, unless it is told to leak."""

    def __init__(self, length: int, *, is_leaking: bool = False) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(NUM_TOKENS, 16), nn.Embedding(length, 16)
        self.mixed, self.wide = (
            nn.Linear(16, 48),
            nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)),
        )
        self.head = nn.Linear(16, NUM_TOKENS)
        self.is_leaking = is_leaking

    def forward(self, tokens: torch.Tensor, segments: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.places(positions)
        mask = (segments[:, None, :, None] == segments[:, None, None, :]).tril()
        if self.is_leaking:
            mask = torch.ones_like(mask).tril()
        query, key, value = (
            part.unflatten(2, (2, 8)).transpose(1, 2) for part in self.mixed(x).chunk(3, dim=2)
        )
        seen = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        x = x + seen.transpose(1, 2).flatten(2)
        return self.head(x + self.wide(x))


def targets_of(tokens: torch.Tensor, segments: torch.Tensor) -> torch.Tensor:
    is_inside = (segments[:, 1:] == segments[:, :-1]) & (segments[:, 1:] > 0)
    return F.pad(tokens[:, 1:].masked_fill(~is_inside, -100), (0, 1), value=-100)


def packed_and_alone(model: Small) -> list[tuple[int, torch.Tensor, torch.Tensor]]:
    """For each sequence: its number in its row, its logits there, and its logits when it is alone."""
    data = numbered([3, 9, 5, 12, 2, 7, 8, 4])
    results = []
    for row in ts.Packed(data, length=16, seed=1):
        tokens, segments, positions = (row[name][None] for name in ("tokens", "segments", "positions"))
        with torch.no_grad():
            logits = model(tokens, segments, positions)[0]
            for segment in range(1, int(segments.max()) + 1):
                here = segments[0] == segment
                own = tokens[:, here]
                alone = model(own, torch.ones_like(own), torch.arange(own.shape[1])[None])[0]
                results.append((segment, logits[here], alone))
    assert len(results) == len(data)
    return results


@pytest.mark.practice("P43")
def test_p43_a_packed_sequence_has_the_logits_that_it_has_alone() -> None:
    """A sequence packed with others has the same logits as alone, if attention stays inside it."""
    torch.manual_seed(0)
    for _, together, alone in packed_and_alone(Small(16)):
        # A tolerance, since the shapes differ: kernels add in another order. A leak is 10,000 times larger.
        torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-5)


def test_a_loss_over_rows_is_the_loss_over_the_sequences_alone() -> None:
    torch.manual_seed(0)
    data, model = numbered([3, 9, 5, 12, 2, 7, 1, 4]), Small(16)
    rows = torch.utils.data.default_collate(list(ts.Packed(data, length=16, seed=1, pad=39)))
    targets = targets_of(rows["tokens"], rows["segments"])
    assert int((targets >= 0).sum()) == sum(len(sequence) - 1 for sequence in data)
    loss = F.cross_entropy(model(**rows).flatten(0, 1), targets.flatten(), reduction="sum")
    alone = [
        F.cross_entropy(
            model(own[None], torch.ones_like(own)[None], torch.arange(len(own))[None])[0, :-1],
            own[1:],
            reduction="sum",
        )
        for own in data
    ]
    # A tolerance, since the sums have another order.
    torch.testing.assert_close(loss, torch.stack(alone).sum(), rtol=1e-5, atol=0)


def train(folder: str, workers: int = 0, die_at: int | None = None, seed: int = 5) -> str:
    lengths = np.random.default_rng(1).integers(1, 17, 150)
    packed = ts.Packed(numbered(lengths.tolist()), length=16, seed=seed)
    with ts.Run(
        folder, seed=1, lanes=3, threads=1, progress=False, snapshots=ts.Snapshots(every_steps=3)
    ) as run:
        model = run.place(Small(16))
        optimizer = AdamW(model.parameters(), lr=1e-2)
        run.track(model=model, optimizer=optimizer)
        for step in run.steps(ts.Loader(packed, batch_size=10, workers=workers), epochs=2):
            for rows in step:
                targets = targets_of(rows["tokens"], rows["segments"])
                num_targets = int((targets >= 0).sum())
                total = F.cross_entropy(model(**rows).flatten(0, 1), targets.flatten(), reduction="sum")
                step.backward(total / max(1, num_targets), weight=num_targets)
            if step.index == die_at:
                os.kill(os.getpid(), signal.SIGKILL)
            step.update(optimizer, clip_norm=1.0)
        return ts.digest_state({"model": model.state_dict(), "optimizer": optimizer.state_dict()})


@pytest.mark.practice("P43")
def test_p43_training_on_rows_gives_the_same_bits_on_any_processes_workers_and_after_kills(
    tmp_path: Path,
) -> None:
    """Training on packed rows gives the same bits on 1 to 3 processes, with workers, and after kills."""
    digest = train(str(tmp_path / "alone"))
    steps = record.read_steps(tmp_path / "alone" / "record.jsonl")
    assert len(steps) > 12 and steps[len(steps) - 1]["loss"] < steps[0]["loss"]
    assert train(str(tmp_path / "workers"), 2) == digest
    for size in (2, 3):
        assert run_processes(train, str(tmp_path / f"{size}"), size=size) == [digest] * size
    moved = str(tmp_path / "moved")
    for size, die_at in ((2, 4), (3, 10)):
        with pytest.raises(RuntimeError, match="died without an answer"):
            run_processes(train, moved, 0, die_at, size=size)
    assert train(moved, 2) == digest
    lines = record.read(tmp_path / "moved" / "record.jsonl")
    starts = [line["cursor"] for line in lines if line["kind"] == "start"]
    assert len(starts) == 3 and starts[0] == 0 < starts[-1]  # or nothing was resumed


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dataset": [[1] * 3, [1] * 9, [1] * 11]}, "sequence 1 has 9 tokens, more than length=8; 2 of 3"),
        ({"length": 0}, "length must be a whole number from 1 on, got 0"),
        ({"dataset": []}, "the dataset list is empty"),
        ({"dataset": [[], []], "lengths": [0, 0]}, "all 2 sequences are empty"),
        ({"dataset": iter([[1]])}, "needs a dataset with __len__ and __getitem__, got list_iterator"),
        ({"dataset": ["ab", "c"]}, "field 'tokens' of sequence 0 is not a sequence of numbers: got str"),
        ({"dataset": [[[1], [2]]]}, "field 'tokens' of sequence 0 is not a sequence of numbers: got list"),
        (
            {"dataset": [{"ids": [1], "label": 3}]},
            "field 'label' of sequence 0 is not a sequence of numbers: got int",
        ),
        ({"dataset": [{"segments": [1]}]}, "the field 'segments' of a row is written by Packed"),
        ({"lengths": [1, 2, 3]}, r"for each of the 2 sequences, got an array of shape \(3,\)"),
        ({"lengths": [1.0, 2.0]}, "dtype float64"),
        ({"lengths": [1, -2]}, "lengths must be from 0 to 2147483647, got -2 to 1"),
    ],
)
def test_what_cannot_be_packed_is_told_at_once(change: dict[str, Any], message: str) -> None:
    settings: dict[str, Any] = {"dataset": [[1], [2, 3]], "length": 8, "seed": 1, **change}
    with pytest.raises(UsageError, match=message):
        ts.Packed(settings.pop("dataset"), **settings)


@pytest.mark.parametrize(
    ("items", "settings", "message"),
    [
        (
            [[1], [2, 3]],
            {"lengths": [1, 3]},
            "sequence 1 has 2 tokens in 'tokens', its row was composed for 3",
        ),
        ([{"a": [1]}, {"a": [1], "b": [1]}], {}, r"other fields: .*'a', 'b'"),
        ([{"a": [1, 2], "b": [1]}], {}, "sequence 0 has 1 tokens in 'b', its row was composed for 2"),
        ([{"a": [1]}], {"pad": {"b": 1}}, r"pad has no entry for the field 'a', only for \['b'\]"),
    ],
)
def test_what_does_not_fit_its_row_is_told_when_it_is_read(
    items: list[Any], settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        ts.Packed(items, length=8, seed=1, **settings)[0]
