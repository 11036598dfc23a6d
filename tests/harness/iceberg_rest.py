"""A real Iceberg REST catalog on loopback: Iceberg's own reference server, with a catalog in SQLite
behind it.

``org.apache.iceberg.rest.RESTCatalogServer`` is what Iceberg tests REST clients with. Its jars lie
in Maven Central, the server's among the tests' of two modules. They are brought to
``<cache>/jars/iceberg`` by the resolvers that bring Delta's (:mod:`spillway.lake.jars`), pinned to
coordinates and SHA-256: 27 MB, of which half is SQLite. What else it needs, PySpark brings.

It answers as a catalog does that has credentials to hand out, if it is given some, and validates
what several commits in one request require before it makes the first of them.

    python -m harness.iceberg_rest      # brings the jars now
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from harness.servers import cache_directory
from spillway.demo.private_postgres import free_port
from spillway.errors import JarsMissing, JavaMissing
from spillway.lake import jars
from spillway.lake.jars import Jar

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_ICEBERG: Final = "1.11.0"
_JETTY: Final = "12.1.5"

SERVER: Final = (
    *(
        Jar("org.apache.iceberg", f"iceberg-{module}", _ICEBERG, sha256, classifier)
        for module, classifier, sha256 in (
            ("api", "", "f00675a12ceb6d833bb9c22024823a3e7afdedf7abcefe34719f45b0d211995a"),
            ("aws", "", "4cfe4a7ba3a4fb247a29e60c614678c3b7a1e9b4b91f54e0ca3406419c9338f0"),
            (
                "bundled-guava",
                "",
                "396d48d93ef5735f2ddef0cf9b3d6968ebd67b64b5cfe753d41c429d3f46a2a1",
            ),
            ("common", "", "b2835d00db7c92bdfa728123ad7cdcb488e2f2805c1c51fb9ae94e8bd203bd7d"),
            ("core", "", "53b9eb7a8c34fb9958ea7d9a4d19ba5bc96f592d0f05e8625b0778c70b1f0090"),
            ("core", "tests", "4284719a5f0eb7db01e9f784a0ed4ca8bacf7d6f9951924143afc083428d8be3"),
            (
                "open-api",
                "test-fixtures",
                "b0aa8636d88c24976d552ac9b3075a1315dc1ccd4fa6ed95b365901842664316",
            ),
        )
    ),
    *(
        Jar(organisation, module, _JETTY, sha256)
        for organisation, module, sha256 in (
            (
                "org.eclipse.jetty.compression",
                "jetty-compression-common",
                "f9eaa16477daaf7ff41e5489e6d41268c42cd58888396762ef093ace819ab683",
            ),
            (
                "org.eclipse.jetty.compression",
                "jetty-compression-gzip",
                "f9a3b082a4eeb0013226c9fd9e9dd60f77c1bf93a87d95e741be9553e769c7b5",
            ),
            (
                "org.eclipse.jetty.compression",
                "jetty-compression-server",
                "f84f42035fec0df6815cdbff80cf324db99d0ca72d9c4922c1f7a94c7dda4e17",
            ),
            (
                "org.eclipse.jetty.ee10",
                "jetty-ee10-servlet",
                "ffd35e86226246c8a57ade503fae733b37e687844c726f63f02c6e5fa9220ace",
            ),
            (
                "org.eclipse.jetty",
                "jetty-http",
                "20a6f605e802789990855b81f75dadfa8ab152e81713080c295c333d7cce7daa",
            ),
            (
                "org.eclipse.jetty",
                "jetty-io",
                "9c388018412d9bd9a1b9c35ca373e25fd845706f82549f2a7039ae9fefb45e69",
            ),
            (
                "org.eclipse.jetty",
                "jetty-security",
                "9972b67058ad7a58a0517cd14502e67e2e1071c74b00f51c6487518f0bfdc02e",
            ),
            (
                "org.eclipse.jetty",
                "jetty-server",
                "e0964741f132de3bdb48ca59c4b9bb8555f966d46b660c8c88f1e157cedbaa02",
            ),
            (
                "org.eclipse.jetty",
                "jetty-session",
                "ebe4f30c6fe7656294d884e1dc8eea4c77b6c861e3c010847a76fd78164ae166",
            ),
            (
                "org.eclipse.jetty",
                "jetty-util",
                "3b165498c1409db1a2463c367250c9225635cf68cd4529fbb0610324942bbc07",
            ),
        )
    ),
    Jar(
        "com.github.ben-manes.caffeine",
        "caffeine",
        "2.9.3",
        "1e0a7bbef1dd791653143f3f05d0e489934bf5481e58a87c9e619cd46b68729b",
    ),
    *(
        Jar(f"org.apache.httpcomponents.{group}", module, version, sha256)
        for group, module, version, sha256 in (
            (
                "client5",
                "httpclient5",
                "5.6.1",
                "1e3d8444c3c27772e4b9d42a790f06b3345a8ece4fd16d00981f2f2460e1e772",
            ),
            (
                "core5",
                "httpcore5",
                "5.4",
                "cec2981fa7f520efb63f0787c24f10af2679e31f9f75c448c4dde40a3ae8100d",
            ),
        )
    ),
    Jar(
        "org.xerial",
        "sqlite-jdbc",
        "3.50.3.0",
        "a3f53a2aa15ae9425a9e793bbe9c8e5288febeb4b65ef5c1a4e80d4c2045cf08",
    ),
)
#: of PySpark's: others of its jars are other versions of what the server has
_OF_SPARK: Final = (
    "RoaringBitmap",
    "avro-1",
    "commons-codec",
    "commons-compress",
    "commons-io",
    "commons-lang3",
    "hadoop-client-api",
    "hadoop-client-runtime",
    "jackson-annotations",
    "jackson-core-2",
    "jackson-databind",
    "jakarta.servlet-api",
    "slf4j-api",
)
_START_S: Final = 60


def folder() -> Path:
    """Return where the server's jars are kept."""
    return cache_directory().absolute() / "jars" / "iceberg"


@contextmanager
def rest_catalog(directory: Path, settings: Mapping[str, str] | None = None) -> Iterator[str]:
    """Run a server whose catalog is kept in *directory*, and tables that don't say where they lie;
    yield its address.

    Args:
        directory: where its database is; what it writes is in ``server.log``.
        settings: of the catalog behind it, by Iceberg's names.
    """
    paths = jars.resolve(folder(), SERVER)
    spark = importlib.util.find_spec("pyspark")
    assert spark is not None
    assert spark.origin is not None
    of_spark = Path(spark.origin).parent / "jars"
    paths += [path for name in _OF_SPARK for path in of_spark.glob(f"{name}*.jar")]
    directory.mkdir(parents=True, exist_ok=True)
    port = free_port()
    wanted = {
        "uri": f"jdbc:sqlite:{directory}/catalog.db?busy_timeout=60000",
        "warehouse": str(directory / "warehouse"),
        "rest.port": str(port),
        **(settings or {}),
    }
    # Its way to read a setting of the environment: a point is "_", a hyphen "__".
    environment = {
        "CATALOG_" + name.replace("-", "__").replace(".", "_").upper(): value
        for name, value in wanted.items()
    }
    with (directory / "server.log").open("ab") as log:
        process = subprocess.Popen(
            [
                jars.java_command(), "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
                "-cp", os.pathsep.join(map(str, paths)),
                "org.apache.iceberg.rest.RESTCatalogServer",
            ],
            env=os.environ | environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )  # fmt: skip
    try:
        address = f"http://127.0.0.1:{port}"
        _wait(process, address, directory / "server.log")
        yield address
    finally:
        process.kill()
        process.wait()


def _wait(process: subprocess.Popen[bytes], address: str, log: Path) -> None:
    until = time.monotonic() + _START_S
    while True:
        assert process.poll() is None, log.read_text()[-3000:]
        try:
            with urllib.request.urlopen(f"{address}/v1/config"):
                return
        except (urllib.error.URLError, OSError):
            assert time.monotonic() < until, log.read_text()[-3000:]
            time.sleep(0.1)


def main() -> None:
    """Bring the jars."""
    try:
        jars.resolve(folder(), SERVER)
    except (JarsMissing, JavaMissing) as error:
        # Their tests say so.
        print(f"Iceberg's REST catalog can't be had: {error}", file=sys.stderr)


if __name__ == "__main__":
    main()
