"""The mark of the last batch of a stream in a subscription's index: a property, written together with the buckets' own.

So a batch is in the index with its mark, or neither is; a batch that a stream repeats after a crash is known by it.
Batch ids of a query grow, so the last one stands for all before it. Pure.
"""

from collections.abc import Mapping
from typing import NamedTuple

MARK_PREFIX = "#postdate.ingest."


class BatchMark(NamedTuple):
    """A batch of a streaming query; the query's id is the checkpoint's and outlives a restart."""

    query_id: str
    batch_id: int

    @classmethod
    def of_options(cls, options: Mapping[str, str]) -> "BatchMark | None":
        """Take the options `query_id` and `batch_id`; None where there are none.

        Raises:
            ValueError: There is only one of them, or a batch id that is no number.
        """
        query_id, batch_id = options.get("query_id"), options.get("batch_id")
        if query_id is None and batch_id is None:
            return None
        if not query_id or batch_id is None or not batch_id.isascii() or not batch_id.isdigit():
            raise ValueError("query_id and batch_id go together, and batch_id must be a whole number")
        return cls(query_id, int(batch_id))

    @property
    def properties(self) -> dict[str, str]:
        """The property that says that the batch is in the index."""
        return {f"{MARK_PREFIX}{self.query_id}": str(self.batch_id)}

    def is_in(self, properties: Mapping[str, str]) -> bool:
        """Whether the batch, or a later one of the query, is in the index.

        >>> [BatchMark("q", 3).is_in(BatchMark("q", done).properties) for done in (2, 3, 4)]
        [False, True, True]
        """
        done = properties.get(f"{MARK_PREFIX}{self.query_id}", "")
        return done.isascii() and done.isdigit() and int(done) >= self.batch_id
