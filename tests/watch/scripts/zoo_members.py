# ruff: noqa: E402
"""Members of the zoo, each trained by its plain loop; prints digests of all that must stay."""

import json
import sys
import warnings
from pathlib import Path

warnings.filterwarnings("ignore")
sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))

from zoo import Plan, train

folder, *names = sys.argv[1:]
plan = Plan(num_steps=6, every_steps=3)
print(json.dumps({name: train(name, Path(folder, name), plan=plan) for name in names}))
