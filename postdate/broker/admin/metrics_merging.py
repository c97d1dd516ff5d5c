"""One page of metrics made of those of several services, family by family and while they come.

    a series of a topic          is of one service, and stays as it is
    anything else                is a process's own, and gets the label `process`, the name of the service

So it is with the sums of a namespace, of which each service has a part: added up here, they would fall when one of them
starts again, and count twice from then on. All services write their families in the same order, so that a family of all
of them is whole in one place, and none is kept in memory.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Final

from postdate.broker.admin.exposition import label_text

PROCESS: Final = "process"
_UP: Final = "postdate_process_up"
_HELP: Final = b"# HELP "


class FamilyReader:
    """The page of one service, a family at a time.

    Args:
        service: The name of the service.
        chunks: The text, cut anywhere.

    Attributes:
        name: The family at hand; None at the end.
        head: Its lines of help and type.
    """

    def __init__(self, service: str, chunks: AsyncIterator[bytes]) -> None:
        self.service = service
        self.name: bytes | None = None
        self.head = b""
        self._lines = _lines_of(chunks)
        self._next: list[bytes] = []

    async def begin(self) -> None:
        """Read up to the first family."""
        async for _ in self.samples():
            pass

    async def samples(self) -> AsyncGenerator[list[bytes], None]:
        """Give the lines of the family at hand; the next one is at hand then."""
        self.name = None
        while True:
            if not self._next:
                found = await anext(self._lines, None)
                if found is None:
                    return
                self._next = found
            ends = next((at for at, line in enumerate(self._next) if line.startswith(_HELP)), None)
            lines, self._next = self._next[:ends], [] if ends is None else self._next[ends:]
            if lines:
                yield [one for one in lines if not one.startswith(b"#")]
            if ends is not None:
                await self._read_head()
                return

    async def _read_head(self) -> None:
        self.name = self._next[0].split(b" ", 3)[2]
        while len(self._next) == 1 and (more := await anext(self._lines, None)) is not None:
            self._next += more
        count = 2 if len(self._next) > 1 and self._next[1].startswith(b"# TYPE ") else 1
        self.head, self._next = b"".join(one + b"\n" for one in self._next[:count]), self._next[count:]


async def merged_pages(readers: Sequence[FamilyReader], silent: Sequence[str] = ()) -> AsyncGenerator[bytes, None]:
    """Merge the pages of services.

    Args:
        readers: The page of each, begun.
        silent: The names of services that do not answer.
    """
    written: set[bytes] = set()
    while (leader := next((one for one in readers if one.name is not None), None)) is not None:
        name = leader.name
        assert name is not None
        if name not in written:
            # A service of another version may have another order: its lines come late then.
            yield leader.head
            written.add(name)
        for one in readers:
            if one.name == name:
                async for lines in one.samples():
                    if kept := merged_lines(one.service, lines):
                        yield kept
    yield f"# HELP {_UP} 1 for a service that has answered, 0 for one whose series are missing.\n".encode()
    yield f"# TYPE {_UP} gauge\n".encode()
    states = [*((one.service, "1.0") for one in readers), *((name, "0.0") for name in silent)]
    yield "".join(f"{_UP}{label_text({PROCESS: name})} {value}\n" for name, value in states).encode()


def merged_lines(service: str, lines: Sequence[bytes]) -> bytes:
    """Return the lines of a service's samples as they stand in the page of all."""
    label = label_text({PROCESS: service})[1:-1].encode()
    kept: list[bytes] = []
    for line in lines:
        # In a value of a label a quotation mark has a backslash before it.
        if b'topic="' in line:
            kept.append(line)
            continue
        series, _, value = line.rpartition(b" ")
        if series.endswith(b"}"):
            kept.append(b"%s,%s} %s" % (series[:-1], label, value))
        elif series:
            kept.append(b"%s{%s} %s" % (series, label, value))
    return b"".join(one + b"\n" for one in kept)


async def _lines_of(chunks: AsyncIterator[bytes]) -> AsyncGenerator[list[bytes], None]:
    rest = b""
    async for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        if lines:
            yield lines
    if rest:
        yield [rest]
