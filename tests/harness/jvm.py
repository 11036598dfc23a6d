"""What the JVMs of tests are started with: most of them live for minutes, and many at once share two cores."""

from __future__ import annotations

import os
from typing import Final

_OPTIONS: Final = (
    # No query has rows enough to earn what the second compiler costs, nor what Spark's own compiling of it costs.
    "-XX:TieredStopAtLevel=1",
    "-Dspark.sql.codegen.wholeStage=false",
    "-Dspark.sql.codegen.factoryMode=NO_CODEGEN",
    # With one compiler the code cache is 48 MB by default, which Spark fills: a fifth of the time went into sweeping it.
    "-XX:ReservedCodeCacheSize=240m",
    # A heap of a gigabyte needs no collector that works beside the program.
    "-XX:+UseSerialGC",
)


def start_quickly() -> None:
    """Give the JVMs of this process and its children these options, unless the environment has some."""
    os.environ.setdefault("JAVA_TOOL_OPTIONS", " ".join(_OPTIONS))
