"""What differs between operating systems. Nothing else in the guest side asks which system it is.

`posix` and `windows` define the same names for files and the machine, and `posix_processes` and `windows_processes` those for
processes, which `forewarn.guest.processes` offers: the SDK needs none.

from forewarn.guest.system import system
"""

from __future__ import annotations

import sys

if sys.platform == "win32":
    from forewarn.guest.system import windows as system
else:
    from forewarn.guest.system import posix as system

__all__ = ["system"]
