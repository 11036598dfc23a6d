"""The jars that Spark needs beside its own: resolved once at set-up, verified, used offline.

Delta Lake lives in Maven Central, not in PyPI. A session that resolved it by itself
(``spark.jars.packages``) would need the network at every start, so set-up does it once::

    python -m spillway.lake.jars --into .cache/jars
    python -m spillway.lake.jars --into .cache/jars --with s3    # for lakes on S3, 12 MB more
    python -m spillway.lake.jars --into .cache/jars --with az    # for lakes in Azure, 1 MB more

and sessions put the files on Spark's class path (:mod:`spillway.lake.session`). Which folder:
``SPILLWAY_JARS``, else ``.cache/jars`` below the current directory.

What is resolved is pinned here to coordinates *and* SHA-256: a jar that differs is refused, whoever
served it. Dependencies are left out on purpose: everything else that Delta asks for (Parquet,
Jackson, Hadoop, 75 MB) is what PySpark's wheel brings already, in the versions that Spark runs
with.

Two resolvers are tried in turn, both with the machine's own configuration and neither with an
address of ours:

1. Ivy, which PySpark's wheel contains: needs nothing but Java. A settings file in
   ``SPILLWAY_IVY_SETTINGS`` (an ``ivysettings.xml``, as Spark's ``spark.jars.ivySettings``)
   replaces Ivy's default resolver.
2. ``mvn``, where it is installed: its ``settings.xml`` may name a mirror that Ivy does not know of.

A machine that reaches neither can be given the files by hand: their names and hashes are checked
the same way.
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
from spillway.installation import how_to_install
from spillway.storage.durable_files import put_in_place, sync_file

#: Spark's Java: 17 or later with the incubator modules, which Debian's JRE has and the JREs in PyPI
#: wheels lack.
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
    #: of one that lies beside a module's own
    classifier: str = ""

    @property
    def file_name(self) -> str:
        suffix = f"-{self.classifier}" if self.classifier else ""
        return f"{self.module}-{self.version}{suffix}.jar"

    @property
    def coordinate(self) -> str:
        own = f"{self.organisation}:{self.module}:{self.version}"
        return f"{own}:{self.classifier}" if self.classifier else own


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


#: The AWS SDK that Hadoop 3.5 is made with, by modules: 7 MB. The one that Hadoop asks for is all
#: of its services in one jar of half a gigabyte. Apache's HTTP client and Netty, which it uses, are
#: among PySpark's jars.
_AWS_SDK_VERSION: Final = "2.35.4"
_AWS_SDK: Final = {
    "annotations": "6f36bd87155d1dd85d6efbdd29e532e3759a022211feb71affebee1aa34f04b8",
    "apache-client": "6eade21b482724ed0a4613eaa95d20e47e7a81304bd28538ac427fece94a7740",
    "arns": "c63cc29f76a8527e9e10b621703163df541dc5cb315508dc2898518602c75380",
    "auth": "6b601323004833fb4a857ffc95db4795e0e6320eb93e64b1246c655c9ff04994",
    "aws-core": "fdb5fc8f1a48d97fa7d04d3460fb42f6973c7b1bbe1b9d317871ef0162bcb623",
    "aws-query-protocol": "9b4cf9b78977cc9f5b4ceae9c435dedbde6a055a0f8d9e053eaca945715e2a9f",
    "aws-xml-protocol": "4f59176da2522c357b1993e4a890fde529f12f365795ef86269bde4a3984cd0d",
    "checksums": "94464af4374d08ecf33ca06ed4d03e1615529e547726e26b56abacefbeee7948",
    "checksums-spi": "88b5af85ac2d3c862be8856be4e683ab31932e4a5a3c1c45af864d2671ac7cec",
    "endpoints-spi": "ef02441bda916959b8341290b49c68cc35538e1ad6f8629b75d8334dc6653e00",
    "http-auth": "3ec933a06e751a05e195eb3589209e23c44e1897263b6fcae34ef4cc63cd4491",
    "http-auth-aws": "c4acb92fdec90bfd9b67bfab8e41b69cd152c03cacc10281a8ab464791856e01",
    "http-auth-aws-eventstream": "709107552f302be3fa9e05969a3779f5c0f07fb809e6fa1fa571a6f0c61326dd",
    "http-auth-spi": "4495463406bb98eb136f2c3f3604ed5f08ec9974ebc3f34f2121b20679f61d5c",
    "http-client-spi": "728be89b2a07b595edb0adee3a2cbbbdd4cb1f4caddde0d08c3979fe2620dedb",
    "identity-spi": "188d73db7d4e2361654bc3c5a1b3eaeb445d0500fb012cc46c5d67975adf97bf",
    "json-utils": "80d67a6bb3e7eb49c7d4b6e4ba4c1463ed7da0192b795158328602dc131c5ecc",
    "metrics-spi": "c2a4ee90a21081317e2e6eba0c414d05d3d518aed2f86b1c1710a7367b450487",
    "netty-nio-client": "b82f8b33e5c85273a47da45ede884d7ccb31c9c2f69e6910a76c5c48fa1275dc",
    "profiles": "0f4ef7ca72ccd80dd49ebeaf7f3ce60a7d7a00da59a91aeeae6e91052bbacbd8",
    "protocol-core": "f2532eca6ba2142fe4821d5decb03c83a3e15dc8bfae2240e7f2efa75f9868b5",
    "regions": "77eae87b34ce96ecdf916a9bc06684dbeafcb6d38ef0513285fa5d5d6d41f5ca",
    "retries": "f99fb2f8c66d7e859955b3542d3af8f9de8f23a21d5e3250f0f2c5f18487e469",
    "retries-spi": "668638751d059c527ddd41ffa4dcebe36a7c14860ed56776df09b861c14dc7dd",
    "s3": "f23532c5223be9b0bfec0d72837ed09ed34dbdf8022818ba145b20076a78b4bc",
    "s3-transfer-manager": "0eec78870b3d0abc509a847072cf963cb2ae6e360dc6161a9449b3398c470476",
    "sdk-core": "fa559a4ce598852f3519c8f3b36250f583b0858a7611eedc4a81997778c617f4",
    "third-party-jackson-core": "32f4252c6c2df8f3a4aff885e6dc77024ad6b4cb48455d07b461ec30c41643ea",
    "utils": "642aeef536a071668f0b772f05f9d21573abf6955e7b6fb5fdb893760cca10e8",
    "utils-lite": "e004806def5e22ec98edc48a133ff3317166255e1ba29d93d129e9fdfa64a7be",
}

#: Hadoop's file system for S3, of the Hadoop that PySpark brings, and what it needs to load.
S3: Final = (
    Jar(
        "org.apache.hadoop",
        "hadoop-aws",
        "3.5.0",
        "66bd9eefb938b1a1657487324b63c13df2d8b17164a1dd24e0ef37b905bc5baa",
    ),
    Jar(
        "software.amazon.s3.analyticsaccelerator",
        "analyticsaccelerator-s3",
        "1.3.1",
        "4959a9747cbb479c73c3ffbcd479bee5b014f8b2880994585a8693fb9d24675e",
    ),
    Jar(
        "software.amazon.eventstream",
        "eventstream",
        "1.0.1",
        "0c37d8e696117f02c302191b8110b0d0eb20fa412fce34c3a269ec73c16ce822",
    ),
    Jar(
        "org.reactivestreams",
        "reactive-streams",
        "1.0.4",
        "f75ca597789b3dac58f61857b9ac2e1034a68fa672db35055a8fb4509e325f28",
    ),
    *(
        Jar("software.amazon.awssdk", module, _AWS_SDK_VERSION, sha256)
        for module, sha256 in _AWS_SDK.items()
    ),
)


#: Hadoop's file system for Azure, and what it needs to load.
AZURE: Final = (
    Jar(
        "org.apache.hadoop",
        "hadoop-azure",
        "3.5.0",
        "220b5db238b82437960e4b81c7e3eefa4eff2a03ad502887497f11d0ad86e663",
    ),
)

#: What Spark needs for lakes on object storage, by the schemes of their addresses.
OF_STORES: Final = {"s3": S3, "az": AZURE}


def default_folder() -> Path:
    """Return where jars are kept: ``SPILLWAY_JARS``, else ``.cache/jars`` below the current
    directory.
    """
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
            stores = [scheme for scheme, its in OF_STORES.items() if jar in its]
            raise JarsMissing(
                f"{jar.file_name} is not in {folder}",
                hint="Run `python -m spillway.lake.jars --into "
                f"{folder}{''.join(f' --with {each}' for each in stores)}` once where Maven "
                "Central can be reached (or set SPILLWAY_JARS to the folder that has it)"
                + ("." if stores else ", or use `--format parquet`, which needs no jars."),
                jar=jar.coordinate,
            )
        if _sha256(path) != jar.sha256:
            raise JarsMissing(
                f"{path} is not the file that was pinned: its SHA-256 differs",
                hint="Remove it and resolve it again; a download that was cut short looks like "
                "this.",
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
                    sync_file(beside)
                    put_in_place(beside, folder / path.name)
                return verified(folder, jars)
            failures.append(f"{name}: {failure}")
    raise JarsMissing(
        "the jars of the lake can't be resolved: " + "; ".join(failures),
        hint="Maven Central must be reachable, directly or through what SPILLWAY_IVY_SETTINGS or "
        f"Maven's own settings.xml say; or copy {', '.join(j.file_name for j in jars)} into "
        f"{folder} by hand; or use `--format parquet`, which needs no jars.",
    )


def _run_ivy(scratch: Path, into: Path, jars: tuple[Jar, ...]) -> str | None:
    """Resolve with the Ivy of PySpark's wheel; return what went wrong, or None."""
    spec = util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        return f"pyspark is not installed. {how_to_install('spark')}"
    ivy = next(iter(sorted(Path(spec.origin).parent.glob("jars/ivy-*.jar"))), None)
    if ivy is None:
        return "pyspark brings no Ivy"
    # The configuration `master` is the artifact itself: no dependencies, no sources, no javadoc.
    wanted: dict[tuple[str, str, str], list[str]] = {}
    for j in jars:
        wanted.setdefault((j.organisation, j.module, j.version), []).append(j.classifier)
    module = "".join(
        f"<dependency org={quoteattr(organisation)} name={quoteattr(name)} "
        f"rev={quoteattr(version)} "
        'transitive="false" conf="default->master">'
        + "".join(_artifact(name, each) for each in classifiers if any(classifiers))
        + "</dependency>"
        for (organisation, name, version), classifiers in wanted.items()
    )
    description = scratch / "ivy.xml"
    description.write_text(
        '<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">'
        '<info organisation="spillway" module="lake-jars"/>'
        "<configurations><conf "
        f'name="default"/></configurations><dependencies>{module}</dependencies></ivy-module>'
    )
    command = [
        java_command(), "-cp", str(ivy), "org.apache.ivy.Main",
        "-ivy", str(description),
        "-cache", str(scratch / "ivy-cache"),
        "-retrieve", f"{into}/[artifact]-[revision](-[classifier]).[ext]",
        "-warn",
    ]  # fmt: skip
    settings = os.environ.get("SPILLWAY_IVY_SETTINGS")
    return _run([*command, *(["-settings", settings] if settings else ["-m2compatible"])])


def _artifact(name: str, classifier: str) -> str:
    more = f" m:classifier={quoteattr(classifier)}" if classifier else ""
    return f'<artifact name={quoteattr(name)} type="jar" ext="jar"{more}/>'


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
            f"<version>{j.version}</version>"
            + (f"<classifier>{j.classifier}</classifier>" if j.classifier else "")
            + "</dependency>"
            for j in jars
        )
        + "</dependencies></project>"
    )
    return _run(
        [
            maven, "--batch-mode", "--quiet", "--file", str(project),
            "dependency:copy-dependencies",
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
    parser.add_argument(
        "--with",
        dest="sets",
        action="append",
        choices=[*OF_STORES],
        default=[],
        help="s3, az: what Spark needs for lakes in such a store, too; may be repeated",
    )
    parser.add_argument("--check", action="store_true", help="only verify what is there")
    chosen = parser.parse_args(arguments)
    try:
        sets = dict.fromkeys(chosen.sets)
        wanted = (*DELTA, *(jar for scheme in sets for jar in OF_STORES[scheme]))
        paths = (
            verified(chosen.into, wanted)
            if chosen.check
            else resolve(chosen.into.absolute(), wanted)
        )
    except SpillwayError as error:
        sys.stderr.write(f"{error.code}: {error.message}\n  hint: {error.hint}\n")
        return 1
    sys.stdout.writelines(f"{path}\n" for path in paths)
    return 0


if __name__ == "__main__":
    sys.exit(main())
