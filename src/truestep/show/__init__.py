"""Showing a script with its values: what each line computed, in the run itself.

Owns the listing and its forms. How a script is started and observed is in `truestep.watch`.
"""

from truestep.show.listing import Listing, Row, Value, read_listing
from truestep.show.run import ShowOptions, show_script

__all__ = ["Listing", "Row", "ShowOptions", "Value", "read_listing", "show_script"]
