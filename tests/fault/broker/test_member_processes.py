"""Services as real processes over a folder of objects: killed, stopped by SIGSTOP and woken again."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

PROGRAM = """
import asyncio, pathlib, sys, time
from managed_ledger.bundles import even_ranges
from managed_ledger.objects.object_store import FolderObjects
from postdate.broker.ownership.leases import LeaseOwners
from postdate.broker.ownership.owners import Addresses

class Keeper:
    async def open_bundle(self, bundle): say("open", bundle)
    async def close_bundle(self, bundle, *, is_lost=False): say("lost" if is_lost else "close", bundle)
    def give_up(self, bundle): pass
    async def warm_bundle(self, bundle): pass
    def load_of(self, bundle): return 0.0

def say(what, bundle):
    print(time.monotonic(), what, bundle, flush=True)

async def main():
    bundles = even_ranges(4)
    owners = LeaseOwners(
        FolderObjects(pathlib.Path(sys.argv[1])), bundles, name=sys.argv[2], addresses=Addresses(), lease_s=2
    )
    await owners.start(Keeper())
    while True:
        await asyncio.sleep(0.05)
        for bundle in bundles:
            if owners.may_deliver(bundle):
                say("deliver", bundle)

asyncio.run(main())
"""


class MemberProcess:
    """A service and what it has said."""

    def __init__(self, folder: Path, name: str) -> None:
        self._path = folder / f"{name}.txt"
        with self._path.open("w") as said:
            program = [sys.executable, "-c", PROGRAM, str(folder / "prefix"), name]
            self.process = subprocess.Popen(program, stdout=said, cwd=Path(__file__).parents[3])

    def said(self) -> list[tuple[float, str, str]]:
        lines = [line.split() for line in self._path.read_text().split("\n")[:-1]]
        return [(float(at), what, bundle) for at, what, bundle in lines]

    def opened(self) -> set[str]:
        found: set[str] = set()
        for _, what, bundle in self.said():
            if what == "open":
                found.add(bundle)
            elif what != "deliver":
                found.discard(bundle)
        return found


def _wait(is_done: Callable[[], bool], limit_s: float) -> None:
    end_s = time.monotonic() + limit_s
    while not is_done():
        assert time.monotonic() < end_s
        time.sleep(0.05)


def _times_s(member: MemberProcess, what: str, since_s: float) -> list[float]:
    return [at for at, said, _ in member.said() if said == what and at >= since_s]


@pytest.mark.slow
def test_the_bundles_of_a_killed_and_of_a_stopped_process_are_at_the_others(tmp_path: Path) -> None:
    members = [MemberProcess(tmp_path, name) for name in "abc"]
    try:
        first, second, third = members
        _wait(lambda: sorted(len(one.opened()) for one in members) == [1, 1, 2], 30)
        lost = first.opened()

        first.process.send_signal(signal.SIGKILL)

        _wait(lambda: lost <= second.opened() | third.opened(), 30)
        assert len(second.opened()) == len(third.opened()) == 2
        lost = second.opened()

        os.kill(second.process.pid, signal.SIGSTOP)
        _wait(lambda: len(third.opened()) == 4, 30)
        woken_s = time.monotonic()
        os.kill(second.process.pid, signal.SIGCONT)

        # It gives up what it had, delivers nothing of it, comes back and gets a share again.
        _wait(lambda: {bundle for at, what, bundle in second.said() if what == "lost" and at >= woken_s} == lost, 30)
        _wait(lambda: len(second.opened()) == len(third.opened()) == 2, 30)
        _wait(lambda: _times_s(second, "deliver", woken_s) != [], 30)
        assert min(_times_s(second, "deliver", woken_s)) >= min(_times_s(second, "open", woken_s))
    finally:
        for member in members:
            member.process.kill()
            member.process.wait()
