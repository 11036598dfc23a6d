"""Small JSON files of a lake's state that say of which format they are: read whole, or refused."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from spillway.errors import LakeTableConflict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from spillway.storage.place import LakePath

T = TypeVar("T")


def read(
    file: LakePath, version: int, make: Callable[[dict[str, Any]], T], damaged: str
) -> T | None:
    """Return what *make* makes of the object in *file*, None when there is no such file.

    Args:
        file: JSON.
        version: what the object's ``version`` must be.
        make: may raise as what stands in :func:`refusing`.
        damaged: as there.

    Raises:
        LakeTableConflict: it can't be read, or is of another format.
    """
    with refusing(file, damaged):
        try:
            text = file.read_text()
        except FileNotFoundError:
            return None
        return make(of_version(text, version))


def of_version(text: str, version: int) -> dict[str, Any]:
    """Return the object in *text*.

    Raises:
        KeyError, TypeError, ValueError: it is none, or of another version.
    """
    value: dict[str, Any] = json.loads(text)
    if value["version"] != version:
        raise ValueError(f"version {value['version']}")
    return value


@contextmanager
def refusing(file: LakePath, damaged: str = "") -> Iterator[None]:
    """Have KeyError, TypeError, ValueError and AttributeError say that *file* can't be read.

    Args:
        file: what is read.
        damaged: what becomes of one that can't be; the hint goes on with it.

    Raises:
        LakeTableConflict: one of these was raised.
    """
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise LakeTableConflict(
            f"{file} can't be read: {error}",
            hint=f"It was written by another release, or is damaged. {damaged}".rstrip(),
        ) from error
