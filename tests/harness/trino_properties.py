"""The properties that a catalog of Trino may have: ``trino_properties.txt`` beside this, read from
Trino's own classes.

A property is named in an annotation of the setter that takes it (``@Config``), so its name lies in
the class file's constants. The file says which jars of Maven Central it was made of, and is made
anew by ``python -m harness.trino_properties JAR…``, which reads them: it runs nothing, as they need
a newer Java than Spark does. The Delta connector's is older than the rest, since later releases of
it are not there.
"""

from __future__ import annotations

import hashlib
import re
import sys
import zipfile
from pathlib import Path
from typing import Final

_FILE: Final = Path(__file__).with_suffix(".txt")
#: A constant is a tag byte, its length in two bytes, and its text.
_NAMED: Final = re.compile(rb"\x01\x00(.)((?:delta|fs|hive|iceberg|s3)\.[a-z0-9.-]+)", re.DOTALL)


def properties() -> set[str]:
    """Return the names of all properties."""
    lines = _FILE.read_text(encoding="utf-8").splitlines()
    return {line for line in lines if not line.startswith("#")}


def _named(jar: Path) -> set[str]:
    found: set[str] = set()
    with zipfile.ZipFile(jar) as classes:
        for name in classes.namelist():
            if name.endswith("Config.class"):
                constants = _NAMED.findall(classes.read(name))
                found |= {text[: length[0]].decode() for length, text in constants}
    return found


def _main() -> None:
    jars = [Path(argument) for argument in sys.argv[1:]]
    head = [f"# {jar.name} sha256:{hashlib.sha256(jar.read_bytes()).hexdigest()}" for jar in jars]
    names = sorted(set().union(*map(_named, jars)))
    _FILE.write_text("\n".join([*head, *names]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    _main()
