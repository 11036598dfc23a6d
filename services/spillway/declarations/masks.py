"""How a mask of a column is written, wherever it is said: ``hash(email)``, ``null(phone)``,
``out(photo)``, ``constant(name:somebody)``. What each does, :mod:`spillway.plugins.masks` says.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal, cast

MaskKind = Literal["out", "null", "constant", "hash"]

_NAME: Final = r"[^\s(),:](?:[^(),:]*[^\s(),:])?"
_MASK: Final = re.compile(
    rf"(?:(?P<kind>out|null|hash)\((?P<of>{_NAME})\))"
    rf"|(?:constant\((?P<column>{_NAME}):(?P<value>[^(),]*)\))"
)


@dataclass(frozen=True, slots=True)
class Mask:
    """What becomes of one column."""

    kind: MaskKind
    column: str
    #: of a constant
    value: str = ""

    @property
    def tells_rows(self) -> bool:
        """Whether what is left of a value tells it from others."""
        return self.kind == "hash"


def parse_mask(text: str) -> Mask | None:
    """Parse one; None: it is none."""
    found = _MASK.fullmatch(text)
    if found is None:
        return None
    if found["kind"] is None:
        return Mask("constant", found["column"], found["value"])
    return Mask(cast("MaskKind", found["kind"]), found["of"])
