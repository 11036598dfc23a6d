"""What really went wrong in a worker: Spark carries Python's exceptions to the driver as text of a
traceback.
"""

from __future__ import annotations

import re
from typing import Any, Final

from spillway import errors
from spillway.errors import LakeError, SpillwayError

#: What Py4J says of every exception of Java's, the exception on the line below.
_CALLED: Final = "An error occurred while calling "
_CAUSE: Final = re.compile(r"Caused by: (?:[\w.$]+: )?(?P<text>.+)")
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
    text = said[0] if said else _told(lines) or repr(error)
    return LakeError(f"{what}: {text}", hint=hint, **details)


def _told(lines: list[str]) -> str:
    """Return what an error says, with Java's innermost cause: the others don't name a full disk."""
    if len(lines) > 1 and lines[0].startswith(_CALLED):
        lines = [lines[1].removeprefix(":").strip(), *lines[2:]]
    text = lines[0] if lines else ""
    causes = [found["text"] for line in lines[1:] if (found := _CAUSE.match(line))]
    return f"{text}: {causes[-1]}" if causes and causes[-1] not in text else text
