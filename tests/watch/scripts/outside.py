# ruff: noqa: PTH207, PTH208
"""Takes from outside what there is. A line's comment names what is to be noted there, and nowhere else."""

import glob
import logging
import os
import random
import secrets
import sys
import time
import uuid
from pathlib import Path

import numpy as np

folder = sys.argv[1]
print(time.time() > 0)  # -> clock
print(time.perf_counter_ns() > 0)  # -> clock
logging.getLogger("quiet").debug("nobody's reading")
for name in ("TRUESTEP_TEST", "TRUESTEP_NONE", "TRUESTEP_TOKEN"):
    print(os.environ.get(name), os.getenv(name), name in os.environ)  # -> environment
try:
    os.environ["TRUESTEP_NONE"]  # -> environment
except KeyError as error:
    print("missing", error)
print(os.listdir(folder))  # -> listing
print([path.name for path in Path(folder).glob("*")])  # -> listing
print([path.name for path in Path(folder).iterdir()])  # -> listing
print(glob.glob("*", root_dir=folder))  # -> listing
print([files for _, _, files in os.walk(folder)])  # -> listing
with os.scandir(folder) as entries:  # -> listing
    print(next(entries).name, next(iter(entries)).name)
rest = os.scandir(folder)  # -> listing
print(len(list(rest)), rest.close())
print(os.getpid() > 0)  # -> pid
print(len(os.urandom(4)), len(uuid.uuid4().hex), len(secrets.token_hex(3)))  # -> entropy
print(random.Random(3).random())
print(random.Random().random() < 1)  # -> entropy
random.seed(3)
np.random.seed(3)
numbers = list(range(500))
random.shuffle(numbers)  # -> random
print(numbers[:5], random.choice([1, 2, 3]), random.random())  # -> random
print(np.random.rand(2), np.random.permutation(100)[:3])  # -> numpy
print(np.random.default_rng(3).random())
print(np.random.default_rng().random() < 1)  # -> entropy
