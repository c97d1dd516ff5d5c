"""The program of a worker, `python -m postdate.broker.cli.worker`, which `postdate serve --workers` starts."""

import sys

from postdate.broker.cli.common import configure_logging, refusing
from postdate.broker.event_loop import run_on_service_loop
from postdate.broker.network.listener import allow_open_files
from postdate.broker.server.worker_start import end_with_front, read_order, run_worker
from postdate.broker.tuning import tune_process


@refusing
def main() -> None:
    """Serve the bundles that the front process names on the standard input."""
    tune_process()
    allow_open_files()
    # All is ready before the order comes: it may be that of a worker that has just ended.
    order = read_order(sys.stdin.buffer)
    if order is None:
        return
    end_with_front(sys.stdin.fileno())
    configure_logging(order.log_level, order.config.log_format, origin=f"worker {order.number}")
    sys.exit(run_on_service_loop(run_worker(order)))


if __name__ == "__main__":
    main()
