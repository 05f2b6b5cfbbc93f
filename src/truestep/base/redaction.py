"""Command lines without their secrets: what is stored of them may be shared.

Owns which names look secret. A secret under a name that says nothing is not recognised.
"""

import re
from collections.abc import Iterable

HIDDEN = "***"
_LAST_WORDS = {"auth", "authorization", "bearer", "cookie", "key", "pass", "pw", "pwd", "token"}
"""What a secret's name ends with: `--hf-token`, not `--token-dropout` or `--num-key-value-heads`."""
_PARTS = re.compile(r"passw|passphrase|secret|credential|(api|access|auth|private)_?(key|token)")
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
# From a name's first character on, and never back: a long word in a stranger's record takes no long time.
_ASSIGNED = re.compile(r"(?<![\w.-])([\w.-]++)[\"']?\s*+[=:](?!//)")
_LOGIN = re.compile(r"(?<=://)[^/@\s]+(?=@)")


def redacted(argv: Iterable[str]) -> list[str]:
    """Return a command line with the values of arguments whose names look secret replaced by `***`.

    Example: `redacted(["train.py", "--api-key", "abc"])` is `["train.py", "--api-key", "***"]`
    """
    shown: list[str] = []
    is_value = False
    for word in argv:
        # A name without its value is followed by it, or is a switch.
        is_hidden = is_value and not word.startswith("--")
        shown.append(HIDDEN if is_hidden else _LOGIN.sub(HIDDEN, _without_assigned(word)))
        is_value = not is_hidden and word.startswith("-") and "=" not in word and _is_secret(word)
    return shown


def _without_assigned(word: str) -> str:
    """Hide all that follows `name=` or `name:`, also inside a word: where the value ends is uncertain."""
    for match in _ASSIGNED.finditer(word):
        if _is_secret(match[1]):
            return word[: match.end()] + HIDDEN
    return word


def _is_secret(name: str) -> bool:
    words = _WORD.findall(name)
    is_last = bool(words) and words[-1].lower() in _LAST_WORDS
    return is_last or _PARTS.search(name.lower().replace("-", "_")) is not None
