"""Seeds: derived from the root seed by hashing, never carried along.

Owns how a seed is derived and how the global generators are set. Knows nothing of lanes or loaders.
"""

from truestep.base.rng.kept import kept_generators
from truestep.base.rng.seeds import VERSION, LazySeeds, Seeds, derive, seed_generators

__all__ = ["VERSION", "LazySeeds", "Seeds", "derive", "kept_generators", "seed_generators"]
