"""A disk that fails on demand, and the folders that a power cut could leave.

`Disk` stands between Python and one folder. What goes around Python's `os` and `open` is not seen: with
`is_checked` it compares its own view with the real folder after each operation, and fails where they differ.
"""

from tests.faults.disk import Disk, folder_in_memory
from tests.faults.fault import Fault, all_faults, some_faults
from tests.faults.nodes import build

__all__ = ["Disk", "Fault", "all_faults", "build", "folder_in_memory", "some_faults"]
