"""Small functions over plain torch modules."""

from truestep.model.groups import decay_groups

__all__ = ["decay_groups"]
