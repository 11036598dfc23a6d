"""The jars that Spark needs beside its own: resolved once at set-up, verified, used offline.

Delta Lake lives in Maven Central, not in PyPI. A session that resolved it by itself (``spark.jars.packages``)
would need the network at every start, so set-up does it once::

    python -m spillway.lake.jars --into .cache/jars

and sessions put the files on Spark's class path (:mod:`spillway.lake.session`). Which folder: ``SPILLWAY_JARS``,
else ``.cache/jars`` below the current directory.

What is resolved is pinned here to coordinates *and* SHA-256: a jar that differs is refused, whoever served it.
Dependencies are left out on purpose: everything else that Delta asks for (Parquet, Jackson, Hadoop, 75 MB) is what
PySpark's wheel brings already, in the versions that Spark runs with.

Two resolvers are tried in turn, both with the machine's own configuration and neither with an address of ours:

1. Ivy, which PySpark's wheel contains: needs nothing but Java. A settings file in ``SPILLWAY_IVY_SETTINGS``
   (an ``ivysettings.xml``, as Spark's ``spark.jars.ivySettings``) replaces Ivy's default resolver.
2. ``mvn``, where it is installed: its ``settings.xml`` may name a mirror that Ivy does not know of.

A machine that reaches neither can be given the files by hand: their names and hashes are checked the same way.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib import util
from pathlib import Path
from typing import Final
from xml.sax.saxutils import quoteattr

from spillway.errors import JarsMissing, JavaMissing, SpillwayError

#: Spark's Java: 17 or later with the incubator modules, which Debian's JRE has and the JREs in PyPI wheels lack.
JAVA_HINT: Final = (
    "Install a Java 17 runtime (Debian: openjdk-17-jre-headless) or point JAVA_HOME at one."
)

_RESOLVE_TIMEOUT_S: Final = 600


@dataclass(frozen=True, slots=True)
class Jar:
    """A pinned artifact of Maven Central."""

    organisation: str
    module: str
    version: str
    sha256: str

    @property
    def file_name(self) -> str:
        return f"{self.module}-{self.version}.jar"

    @property
    def coordinate(self) -> str:
        return f"{self.organisation}:{self.module}:{self.version}"


#: Delta Lake 4.4.0 for Spark 4.2: the last release whose jars for that Spark are in Maven Central.
DELTA: Final = (
    Jar(
        "io.delta",
        "delta-spark_4.2_2.13",
        "4.4.0",
        "27d4fd8b1f879535c573ed1c718177d6a27f24d3e626ba02e216369725721ead",
    ),
    Jar(
        "io.delta",
        "delta-storage",
        "4.4.0",
        "c46735481fa8e326b0957be02b4420cbcab4b325bb08009b7f2045a95133f1cc",
    ),
    Jar(
        "io.delta",
        "delta-kernel-api",
        "4.4.0",
        "ee9b5a14ac3b7efdff4d61a58478fe8eb0e5a3fbca43889dca7290795fe79a11",
    ),
    Jar(
        "io.delta",
        "delta-kernel-defaults",
        "4.4.0",
        "225c975199e4718b38ee5b7e6da7f19e9585024262b2cec2656b32151a856b0b",
    ),
)


def default_folder() -> Path:
    """Return where jars are kept: ``SPILLWAY_JARS``, else ``.cache/jars`` below the current directory."""
    return Path(os.environ.get("SPILLWAY_JARS") or Path(".cache") / "jars").absolute()


def java_command() -> str:
    """Return the ``java`` that Spark will run.

    Raises:
        JavaMissing: neither JAVA_HOME nor PATH has one.
    """
    home = os.environ.get("JAVA_HOME")
    if home:
        java = Path(home) / "bin" / "java"
        if not java.is_file():
            raise JavaMissing(f"JAVA_HOME has no java: {java}", hint=JAVA_HINT)
        return str(java)
    found = shutil.which("java")
    if found is None:
        raise JavaMissing("no Java runtime was found, and Spark is a Java program", hint=JAVA_HINT)
    return found


def verified(folder: Path, jars: tuple[Jar, ...] = DELTA) -> list[Path]:
    """Return the paths of *jars* in *folder*, each checked against its SHA-256.

    Raises:
        JarsMissing: a file is absent, or is not what was pinned.
    """
    paths = []
    for jar in jars:
        path = folder / jar.file_name
        if not path.is_file():
            raise JarsMissing(
                f"{jar.file_name} is not in {folder}",
                hint=f"Run `python -m spillway.lake.jars --into {folder}` once where Maven Central can be reached "
                "(or set SPILLWAY_JARS to the folder that has it), or use `--format parquet`, which needs no jars.",
                jar=jar.coordinate,
            )
        if _sha256(path) != jar.sha256:
            raise JarsMissing(
                f"{path} is not the file that was pinned: its SHA-256 differs",
                hint="Remove it and resolve it again; a download that was cut short looks like this.",
                jar=jar.coordinate,
            )
        paths.append(path)
    return paths


def resolve(folder: Path, jars: tuple[Jar, ...] = DELTA) -> list[Path]:
    """Bring *jars* into *folder*, unless they are there already, and return their paths.

    Raises:
        JavaMissing: no Java runtime to run Ivy with.
        JarsMissing: no resolver got them, or what came is not what was pinned.
    """
    try:
        return verified(folder, jars)
    except JarsMissing:
        pass
    folder.mkdir(parents=True, exist_ok=True)
    failures = []
    with tempfile.TemporaryDirectory(prefix="spillway-jars-") as scratch:
        for name, run in (("ivy", _run_ivy), ("mvn", _run_maven)):
            into = Path(scratch) / name
            into.mkdir()
            failure = run(Path(scratch), into, jars)
            if failure is None:
                for path in verified(into, jars):
                    # Copied beside, then renamed: a folder never shows half a jar under its name.
                    beside = folder / f".{path.name}.part"
                    shutil.copyfile(path, beside)
                    beside.replace(folder / path.name)
                return verified(folder, jars)
            failures.append(f"{name}: {failure}")
    raise JarsMissing(
        "the jars of Delta Lake can't be resolved: " + "; ".join(failures),
        hint="Maven Central must be reachable, directly or through what SPILLWAY_IVY_SETTINGS or Maven's own "
        f"settings.xml say; or copy {', '.join(j.file_name for j in jars)} into {folder} by hand; or use "
        "`--format parquet`, which needs no jars.",
    )


def _run_ivy(scratch: Path, into: Path, jars: tuple[Jar, ...]) -> str | None:
    """Resolve with the Ivy of PySpark's wheel; return what went wrong, or None."""
    spec = util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        return "pyspark is not installed (install the extra: spillway[spark])"
    ivy = next(iter(sorted(Path(spec.origin).parent.glob("jars/ivy-*.jar"))), None)
    if ivy is None:
        return "pyspark brings no Ivy"
    # The configuration `master` is the artifact itself: no dependencies, no sources, no javadoc.
    module = "".join(
        f"<dependency org={quoteattr(j.organisation)} name={quoteattr(j.module)} rev={quoteattr(j.version)} "
        'transitive="false" conf="default->master"/>'
        for j in jars
    )
    description = scratch / "ivy.xml"
    description.write_text(
        '<ivy-module version="2.0"><info organisation="spillway" module="lake-jars"/>'
        f'<configurations><conf name="default"/></configurations><dependencies>{module}</dependencies></ivy-module>'
    )
    command = [
        java_command(), "-cp", str(ivy), "org.apache.ivy.Main",
        "-ivy", str(description),
        "-cache", str(scratch / "ivy-cache"),
        "-retrieve", f"{into}/[artifact]-[revision].[ext]",
        "-warn",
    ]  # fmt: skip
    settings = os.environ.get("SPILLWAY_IVY_SETTINGS")
    return _run([*command, *(["-settings", settings] if settings else ["-m2compatible"])])


def _run_maven(scratch: Path, into: Path, jars: tuple[Jar, ...]) -> str | None:
    """Resolve with ``mvn``; return what went wrong, or None."""
    maven = shutil.which("mvn")
    if maven is None:
        return "not installed"
    project = scratch / "pom.xml"
    project.write_text(
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        "<groupId>spillway</groupId><artifactId>lake-jars</artifactId><version>1</version><packaging>pom</packaging>"
        "<dependencies>"
        + "".join(
            f"<dependency><groupId>{j.organisation}</groupId><artifactId>{j.module}</artifactId>"
            f"<version>{j.version}</version></dependency>"
            for j in jars
        )
        + "</dependencies></project>"
    )
    return _run(
        [
            maven, "--batch-mode", "--quiet", "--file", str(project), "dependency:copy-dependencies",
            "-DexcludeTransitive=true", f"-DoutputDirectory={into}",
        ]
    )  # fmt: skip


def _run(command: list[str]) -> str | None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_RESOLVE_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return f"no answer within {_RESOLVE_TIMEOUT_S} s"
    if done.returncode == 0:
        return None
    lines = [line.strip() for line in (done.stderr + done.stdout).splitlines() if line.strip()]
    told = [
        line for line in lines if "not found" in line or "Could not" in line or "Could NOT" in line
    ]
    return (told or lines or [f"exit code {done.returncode}"])[0].strip(": ")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def main(arguments: list[str] | None = None) -> int:
    """Run ``python -m spillway.lake.jars``."""
    parser = argparse.ArgumentParser(
        prog="python -m spillway.lake.jars",
        description="Resolve the jars of Delta Lake into a folder.",
    )
    parser.add_argument("--into", type=Path, default=default_folder(), metavar="DIR")
    parser.add_argument("--check", action="store_true", help="only verify what is there")
    chosen = parser.parse_args(arguments)
    try:
        paths = verified(chosen.into) if chosen.check else resolve(chosen.into.absolute())
    except SpillwayError as error:
        sys.stderr.write(f"{error.code}: {error.message}\n  hint: {error.hint}\n")
        return 1
    sys.stdout.writelines(f"{path}\n" for path in paths)
    return 0


if __name__ == "__main__":
    sys.exit(main())
