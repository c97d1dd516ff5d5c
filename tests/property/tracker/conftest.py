"""Only transitions change a tracker's state, in every test here."""

from tests.helpers.one_writer import only_transitions_write

__all__ = ["only_transitions_write"]
