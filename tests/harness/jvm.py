"""What the JVMs of tests are started with: most of them live for minutes, and many at once share
two cores.

Half of what such a JVM does is loading and checking Spark's classes. ``python -m harness.jvm`` lets
one of them run a lake and leave its classes in an archive, which all later ones map (class data
sharing). The archive is for one Java, one PySpark and one virtual environment; a JVM that it
doesn't fit goes on without it.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Final

from harness.servers import cache_directory
from spillway.errors import JavaMissing
from spillway.lake import jars

_TESTS: Final = Path(__file__).parents[1]
_OPTIONS: Final = (
    # No query has rows enough to earn what the second compiler costs, nor what Spark's own
    # compiling of it costs.
    "-XX:TieredStopAtLevel=1",
    "-Dspark.sql.codegen.wholeStage=false",
    "-Dspark.sql.codegen.factoryMode=NO_CODEGEN",
    # With one compiler the code cache is 48 MB by default, which Spark fills: a fifth of the time
    # went into sweeping it.
    "-XX:ReservedCodeCacheSize=240m",
    # A heap of a gigabyte needs no collector that works beside the program.
    "-XX:+UseSerialGC",
    # That an archive doesn't fit would be said on standard output.
    "-Xlog:cds*=off,class+path*=off",
)


def start_quickly() -> None:
    """Give the JVMs of this process and its children these options, unless the environment has
    some.
    """
    if "JAVA_TOOL_OPTIONS" in os.environ:
        return
    options = list(_OPTIONS)
    archive = _archive()
    if archive is not None and archive.exists():
        # Quoted: the variable is cut at spaces, and a clone's path may have some.
        options.append(f'"-XX:SharedArchiveFile={archive}"')
    os.environ["JAVA_TOOL_OPTIONS"] = " ".join(options)


def end() -> None:
    """End this process's JVM, whose session was stopped: the next session has one of its own, with
    the jars that it asks for, as a JVM has those that it was started with.
    """
    # Most tests need none.
    from py4j import java_gateway, protocol
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    if gateway is None:
        return
    process: subprocess.Popen[bytes] = gateway.proc
    gateway.shutdown()
    SparkContext._gateway = SparkContext._jvm = None
    # PySpark's, which every session puts there anew, asks that JVM about exceptions of any.
    java_gateway.get_return_value = protocol.get_return_value
    # It ends with its standard input.
    assert process.stdin is not None
    process.stdin.close()
    process.wait(120)


def _archive() -> Path | None:
    """Return where the archive is or would be; None without Java."""
    try:
        java = jars.java_command()
    except JavaMissing:
        return None
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    facts = "\n".join((said, version("pyspark"), sys.prefix))
    return cache_directory() / "jvm" / f"{hashlib.sha256(facts.encode()).hexdigest()[:16]}.jsa"


def _make(archive: Path) -> None:
    """Run a lake in a JVM that leaves *archive* when it ends."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=archive.parent) as directory:
        made = Path(directory, "made.jsa")
        options = " ".join((*_OPTIONS, f'"-XX:ArchiveClassesAtExit={made}"'))
        done = subprocess.run(
            [sys.executable, "-m", "harness.jvm_classes"],
            env={**os.environ, "JAVA_TOOL_OPTIONS": options, "PYTHONPATH": str(_TESTS)},
            cwd=directory,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode == 0 and made.exists():
            made.rename(archive)
        else:
            # The tests say what is wrong; without the archive they take longer.
            print(f"that failed:\n{done.stderr[-4000:]}", file=sys.stderr)


def main() -> None:
    """Make the archive unless it is there."""
    archive = _archive()
    if archive is None or archive.exists():
        return
    print(f"keeping Spark's classes for the tests' JVMs in {archive}", file=sys.stderr)
    _make(archive)


if __name__ == "__main__":
    main()
