"""The client's version."""

from typing import Final

VERSION: Final = "0.1.0"
