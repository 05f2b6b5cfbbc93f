"""Showing a script with its values: what each line computed, in the run itself.

Owns the listing and its forms. How a script is started and observed is in `truestep.watch`.
"""

from truestep.show.listing import Listing
from truestep.show.run import Other, ShowOptions, find_other, show_both, show_script

__all__ = ["Listing", "Other", "ShowOptions", "find_other", "show_both", "show_script"]
