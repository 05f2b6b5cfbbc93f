"""Showing a script with its values: what each line computed, in the run itself.

Owns the listing and its forms. How a script is started and observed is in `truestep.watch`.
"""

from truestep.show.listing import Listing, read_listing
from truestep.show.run import Other, ShowOptions, find_other, recording, show_both, show_script

__all__ = [
    "Listing",
    "Other",
    "ShowOptions",
    "find_other",
    "read_listing",
    "recording",
    "show_both",
    "show_script",
]
