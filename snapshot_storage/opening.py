"""The base of storages and of the workers on them: a context manager that opens before use and closes after it."""

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class Opening(ABC):
    """Is open inside `async with`."""

    @abstractmethod
    async def start(self) -> None:
        """Open it. Idempotent."""

    @abstractmethod
    async def close(self) -> None:
        """Close it. Idempotent; never raises."""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()
