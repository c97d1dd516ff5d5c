"""Records of the log in memory, for policies and grants."""

from collections.abc import Callable, Mapping


class MemoryRecords:
    """Records in memory, with a disk that can be full."""

    def __init__(self, records: Mapping[str, bytes] = {}) -> None:
        self.records = dict(records)
        self.is_full = False

    async def put_record(self, name: str, value: bytes | None) -> None:
        if self.is_full:
            raise OSError("no space left")
        if value is None:
            self.records.pop(name, None)
        else:
            self.records[name] = value

    async def change_record(self, name: str, change: Callable[[bytes | None], bytes | None]) -> None:
        await self.put_record(name, change(self.records.get(name)))
