"""The name of the mutable bucket where others are named by their serial."""

from typing import Final

MUTABLE: Final = -1
