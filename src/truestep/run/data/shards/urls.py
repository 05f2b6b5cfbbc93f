"""Names of shards: patterns written out, places told apart, kinds by ending.

Owns text only. Listing what is there is `remote`'s.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path

from truestep.errors import UsageError

KINDS = ("tar", "parquet", "arrow")
Urls = str | Path | Iterable[str | Path]
_RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")
_MAGIC = re.compile(r"[*?\[]")


def kind_of(url: str) -> str:
    """Return the kind of a shard by the ending of its name."""
    kind = url.rpartition(".")[2].lower()
    if kind not in KINDS:
        raise UsageError(
            f"a shard's name ends in {', '.join(f'.{known}' for known in KINDS)}, got {url!r}."
            " Compressed tar files cannot be entered in the middle: unpack them once."
        )
    return kind


def local_path(url: str) -> Path | None:
    """Return the path of a shard on this machine, or None if it is elsewhere."""
    if url.startswith("file://"):
        return Path(url.removeprefix("file://"))
    return None if "://" in url or "::" in url else Path(url)


def short_name(url: str) -> str:
    """Return the last part of a name."""
    return url.rpartition("/")[2]


def write_out(urls: Urls) -> list[str]:
    """Return the names with each `{000..099}` written out; what has `*`, `?` or `[` stays a pattern."""
    given = [urls] if isinstance(urls, str | Path) else list(urls)
    if not given:
        raise UsageError("there are no shards: the list of urls is empty. Pass names or a pattern.")
    found: list[str] = []
    for each in given:
        if not isinstance(each, str | Path):
            raise UsageError(f"urls are names of shards, got {each!r}. Pass strings or paths.")
        path = local_path(str(each))
        found += _ranges(str(each) if path is None else str(path.absolute()))
    return found


def _ranges(url: str) -> Iterator[str]:
    found = _RANGE.search(url)
    if found is None:
        yield url
        return
    first, last = found.groups()
    if int(last) < int(first):
        raise UsageError(f"the range {found[0]} of {url!r} is empty. Write the smaller number first.")
    for number in range(int(first), int(last) + 1):
        written = f"{number:0{len(first)}}"
        yield from _ranges(url[: found.start()] + written + url[found.end() :])


def is_pattern(url: str) -> bool:
    """Tell whether a name stands for all that match it."""
    return _MAGIC.search(url) is not None


def fill_in(urls: list[str], listing: Callable[[str], list[str]]) -> list[str]:
    """Return the names with each pattern replaced by what matches it, in the order of the alphabet."""
    found: list[str] = []
    for url in urls:
        matching = sorted(listing(url)) if is_pattern(url) else [url]
        if not matching:
            raise UsageError(f"no shard matches {url!r}. Check the folder, and the pattern.")
        found += matching
    for url in found:
        kind_of(url)
    if len(set(found)) < len(found):
        twice = next(url for url in found if found.count(url) > 1)
        raise UsageError(f"the shard {twice!r} is named twice. Name every shard once.")
    return found


def match_names(pattern: str, names: Iterable[str]) -> list[str]:
    """Return what a pattern stands for if exactly these names are below one folder; `*` has no `/` in it."""
    parts = pattern.split("/")
    num_fixed = next(at for at, part in enumerate(parts) if is_pattern(part))
    found: dict[int, list[str]] = {}
    for name in names:
        ending = name.split("/")
        above = len(parts) - len(ending)
        if 0 <= above <= num_fixed and all(map(fnmatchcase, ending, parts[above:])):
            found.setdefault(above, []).append("/".join([*parts[:above], name]))
    # All names are below the same folder, and the longest that fit say which it is.
    return found[min(found)] if found else []
