"""Small functions that explain plain torch tensors."""

from truestep.tensor.explain import explain
from truestep.tensor.facts import Explanation

__all__ = ["Explanation", "explain"]
