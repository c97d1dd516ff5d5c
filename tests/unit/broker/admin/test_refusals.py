"""What a request is told that failed."""

from types import SimpleNamespace

from managed_ledger.errors import LedgerWriteError, LogFencedError
from postdate.broker.admin.refusal import refusal_of


def told(error: Exception) -> str:
    refusal = refusal_of(SimpleNamespace(path="/postdate/v1/messages"), error)  # type: ignore[arg-type]
    assert refusal is not None
    assert refusal.status == 503
    return str(refusal)


def test_the_outcome_of_a_write_that_was_fenced_is_not_known() -> None:
    fenced = LedgerWriteError("A commit failed")
    fenced.__cause__ = LogFencedError("another owner has taken it over")

    assert told(fenced).startswith("Whether it was carried out is not known: another owner")
    assert told(LedgerWriteError("A commit failed")) == "The log cannot be used now: A commit failed"
