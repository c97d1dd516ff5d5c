"""Files that are none: a folder, a pipe, a device or a link to nowhere in the place of a file.

Opening a pipe waits for ever, and reading a device does not end. So a module asks here before it
opens a file whose place another program may have taken.
"""

import os
from pathlib import Path


def is_misplaced(place: Path) -> bool:
    """Whether there is something else than a file; a file that is missing is not.

    Raises:
        OSError: The system refuses to tell.
    """
    return not place.is_file() and os.path.lexists(place)
