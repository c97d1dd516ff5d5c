"""Two settings of the Python interpreter without which the event loop pauses for longer than anything it does itself.

Both are the whole process's, so they belong to whoever owns it: the service's command, and benchmarks that measure what
the service will do. Libraries leave them alone.
"""

import gc
import sys
from typing import Final

SWITCH_INTERVAL_S: Final = 0.0005
"""How long a worker thread may keep the interpreter when the event loop wants it.

With Python's own 5 ms, an add that gives it away once (any numpy call on more than 500 values does) waits up to 5 ms
while a bucket is encoded, and a batch several times that.
"""


def tune_interpreter() -> None:
    """Let worker threads hand over early, and leave out of garbage collections what never becomes garbage.

    Call once everything is imported: a full collection looks at some hundred thousand objects of modules otherwise,
    which stops every thread for 10 to 20 ms.
    """
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.collect()
    gc.freeze()
