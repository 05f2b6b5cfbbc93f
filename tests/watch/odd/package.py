"""The script is run as a module of a package: `python -m package`."""
# module
import sys
from package import __name__ as name
from training import digest, small, train
print(__name__, __package__, __spec__.name, __spec__.parent, name, sys.argv, sys.orig_argv[1:], sys.path[0] == __import__("os").getcwd())
model = small()
train(model)
print(digest(model))
1 / 0
