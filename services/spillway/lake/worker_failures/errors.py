"""What really went wrong in a worker: Spark carries Python's exceptions to the driver as text of a
traceback.
"""

from __future__ import annotations

import re
from typing import Any, Final

from spillway import errors
from spillway.errors import LakeError, SpillwayError

_SAID: Final = re.compile(r"spillway\.errors\.(?P<kind>\w+): (?P<message>.*)")


def typed_error(error: BaseException, *, what: str, hint: str, **details: Any) -> SpillwayError:
    """Return *error* as the kind it had where it was raised, or as a
    :class:`~spillway.errors.LakeError`.

    Args:
        error: from Spark, or from the driver's own code.
        what: begins the message where the kind is not known, ``the Spark job failed`` for one.
        hint: what to do: the worker's own hint is not in the text.
        details: of the error that is made.
    """
    if isinstance(error, SpillwayError):
        return error
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = next(filter(None, map(_SAID.search, lines)), None)
    if said is not None:
        kind: Any = getattr(errors, said["kind"], None)
        if isinstance(kind, type) and issubclass(kind, SpillwayError):
            # Some kinds make their message themselves.
            typed = kind.__new__(kind)
            SpillwayError.__init__(typed, said["message"], hint=hint, **details)
            return typed
    text = said[0] if said else lines[0] if lines else repr(error)
    return LakeError(f"{what}: {text}", hint=hint, **details)
