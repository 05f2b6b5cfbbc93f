"""The errors truestep raises. Each message says what was found, what was expected, and what to do."""


class TruestepError(Exception):
    """Base of all errors that truestep raises on purpose. Their text never steers a terminal."""

    is_shared = False
    """Whether all processes of a run raise it together, so that one of them telling it is enough."""

    def __str__(self) -> str:
        return printable(super().__str__(), keep="\n\t")


def printable(text: object, *, keep: str = "") -> str:
    """Return a text without what would steer a terminal; line breaks stay only if `keep` has them."""
    return "".join(sign if sign.isprintable() or sign in keep else "�" for sign in str(text))


def shared(error: TruestepError) -> TruestepError:
    """Mark an error as one that all processes of a run raise together."""
    error.is_shared = True
    return error


class UsageError(TruestepError):
    """A call that cannot be carried out as written."""


class StateError(TruestepError):
    """Something tracked cannot be saved, or does not fit what was saved."""


class DamagedSnapshot(TruestepError):
    """A snapshot on disk is torn, altered, or belongs to another run."""


class DifferentRun(TruestepError):
    """Resuming would not give the same bits: the recipe, the machine or the witness differs."""


class FolderInUse(TruestepError):
    """Another process, or another run of this one, is training in this run folder."""


class FolderUnusable(TruestepError):
    """A run folder cannot be written, or has a link, a pipe or a device in the place of one of its files."""


class CheckFailed(TruestepError, AssertionError):
    """Training that was checked in this process has mistakes in it, or could not be checked."""


class NonFiniteError(TruestepError):
    """A loss or gradient is not finite; the weights were not touched."""


class AuditFailed(TruestepError):
    """A process computes or holds other bits than the others; no update was made with what differs."""

    def __init__(self, message: str, *, ranks: tuple[int, ...] = (), repeats: bool = False) -> None:
        super().__init__(message)
        self.ranks = [*ranks]
        """The process that is wrong; several where they cannot be told apart."""
        self.repeats = repeats
        """Whether it was wrong again at the second try."""


class SaveFailed(TruestepError):
    """A snapshot could not be written; the ones before it are intact."""


class ShardUnreadable(TruestepError):
    """A shard of a dataset is missing, cut short, altered, or does not answer."""
