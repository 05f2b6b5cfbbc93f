"""Facts: what can be seen of a training script, one type for each kind of moment.

Owns their fields. Inspectors make them in the script's process, and rules read them in ours. All modules are
imported together: a reader of evidence must know every kind.
"""

from truestep.watch.evidence.facts import loading, optimizing, passes, structure, surroundings

__all__ = ["loading", "optimizing", "passes", "structure", "surroundings"]
