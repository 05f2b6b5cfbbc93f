"""Tricks with modules: reloaded, removed and imported once more, replaced, found by a finder of the script's own."""
import importlib, sys, types
import random
import torch
from training import digest, small, train

class Finder:
    def find_spec(self, name, path, target=None):
        if name == "made_up":
            return importlib.machinery.ModuleSpec(name, self)
        return None
    def create_module(self, spec): return None
    def exec_module(self, module): module.value = 7

sys.meta_path.append(Finder())
import made_up
model = small()
train(model)
importlib.reload(random)
random.seed(3)
print(made_up.value, random.random(), importlib.util.find_spec("torch").name, importlib.util.find_spec("numpy.random").name)
del sys.modules["training"]
import training
print(training is not sys, training.small is small)
sys.modules["fake"] = types.SimpleNamespace(value=3)
import fake
again = importlib.reload(importlib.import_module("torch.optim.sgd"))
train(model, optimizer=again.SGD(model.parameters(), lr=0.1))
print(fake.value, [type(item).__name__ for item in sys.meta_path if not isinstance(item, type)][-1], digest(model))
