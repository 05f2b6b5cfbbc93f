"""A script that prints everything about its surroundings; the tests compare it with and without watching."""

import json
import os
import pickle
import signal
import sys
import threading
import warnings


class Local:
    value = 3


def show(**facts):
    print(json.dumps(facts, default=repr, sort_keys=True))


show(
    argv=sys.argv,
    orig_argv=sys.orig_argv,
    path=sys.path,
    flags=str(sys.flags),
    cwd=os.getcwd(),  # noqa: PTH109
    names=list(globals()),
    file=__file__,
    name=__name__,
    package=__package__,
    spec=__spec__ and __spec__.name,
    loader=type(__loader__).__name__,
    cached=repr(globals()["__cached__"]),
    doc=__doc__,
    annotations=__annotations__,
    builtins=repr(__builtins__),
    main_is_this=sys.modules["__main__"].__dict__ is globals(),
    hook=sys.excepthook is sys.__excepthook__,
    handlers=[repr(signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE)],
    warning_filters=repr(warnings.filters),
    warning_options=sys.warnoptions,
    environment=sorted(os.environ.items()),
    threads=[thread.name for thread in threading.enumerate()],
    pickled=pickle.loads(pickle.dumps(Local())).value,
    pickled_by=pickle.dumps(Local).hex(),
    stdin=sys.stdin.read(),
    recursion=sys.getrecursionlimit(),
    torch="torch" in sys.modules,
    numpy="numpy" in sys.modules,
    random="random" in sys.modules,
    hash_is_random=sys.flags.hash_randomization,
    prefixes=[sys.prefix, sys.executable, sys.argv[0], repr(sys.gettrace()), repr(sys.getprofile())],
)
if __name__ == "__main__":
    print("main", file=sys.stderr)
