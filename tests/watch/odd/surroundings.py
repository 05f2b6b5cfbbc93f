"""What the script is called, where it lies, and what its namespace holds."""
# arguments: --lr 0.1 'a b'
import sys
print(sys.argv, __name__, __file__ == sys.modules["__main__"].__file__, __spec__, __package__, __doc__, __loader__.__class__)
print(sys.path[0] == __file__.rpartition("/")[0], sys.orig_argv[1:], sorted(vars()), __builtins__, __debug__)
from training import digest, small, train
print([name for name in sys.path if "truestep" in name and "src" not in name], sorted(vars()))
model = small()
train(model)
print(digest(model), sorted(vars()))
assert False, "asserts are on"
