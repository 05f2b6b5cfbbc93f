"""Several ranks save to one file.

## What it finds
`torch.save` or safetensors that write the same path on more than one rank. Use `--processes 2`.

## Why it matters
The ranks write at the same time. The file can end as a mixture of both, and a checkpoint that cannot be
loaded is noticed when it is needed. Even if it is whole, it holds the state of the rank that wrote last.

## How to fix
Save on one rank, `if rank == 0: torch.save(...)`, and let the others wait with `dist.barrier()` outside the
condition. Put the rank into the name if each rank saves its own state.
"""

from collections import defaultdict
from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta
from truestep.watch import Moment
from truestep.watch.evidence.facts.structure import FileSaved

RULE = Meta(
    code="DIST07",
    severity="warning",
    is_observed=lambda evidence: len(evidence.processes) > 1,
    needs=(FileSaved,),
    fix="Save on one rank only: if rank == 0.",
)
_WHOLE = ("torch", "safetensors")
_IGNORED = ("/dev/",)


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find paths that several ranks write."""
    writers: dict[str, dict[int, Moment[FileSaved]]] = defaultdict(dict)
    for process in evidence.processes:
        if process.size < 2:
            continue
        for moment in process.of(FileSaved):
            path = moment.facts.path
            if path and moment.facts.how in _WHOLE and not path.startswith(_IGNORED):
                writers[path].setdefault(process.rank, moment)
    for path, ranks in writers.items():
        if len(ranks) > 1:
            names = ", ".join(str(rank) for rank in sorted(ranks)[:8])
            yield Finding.at(
                ranks[min(ranks)],
                f"{len(ranks)} ranks save to the same file",
                evidence=f"ranks {names} wrote {path}",
            )
