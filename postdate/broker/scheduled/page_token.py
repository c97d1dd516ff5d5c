"""The token of a listing's next page: `next` of an answer, `after` of a request. Opaque, and valid for ever."""

import base64
import binascii
from struct import Struct
from struct import error as StructError  # noqa: N812 - the library calls a class like a variable
from typing import Final, NamedTuple

from tracker.columns.row_order import RowKey

_TOKEN: Final = Struct(">Bqqq")
_VERSION: Final = 2


class PageToken(NamedTuple):
    """The last message of a page."""

    place: RowKey

    def __str__(self) -> str:
        return base64.urlsafe_b64encode(_TOKEN.pack(_VERSION, *self.place)).decode().rstrip("=")

    @classmethod
    def parse(cls, text: str) -> "PageToken":
        """Parse a token.

        >>> PageToken.parse(str(PageToken(RowKey(5, 3, 9))))
        PageToken(place=RowKey(deliver_at_ms=5, ledger_id=3, entry_id=9))

        Raises:
            ValueError: The text is not a token of a listing.
        """
        try:
            data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
            version, deliver_at_ms, ledger_id, entry_id = _TOKEN.unpack(data)
        except (binascii.Error, StructError, ValueError) as error:
            raise ValueError("it is not what next gave") from error
        if version != _VERSION:
            raise ValueError("it is not what next gave")
        return cls(RowKey(deliver_at_ms, ledger_id, entry_id))
