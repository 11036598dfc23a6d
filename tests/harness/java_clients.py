"""Stock Java clients: pgjdbc, and Debezium's embedded engine, driven from Python in a JVM of their
own.

Their jars lie in Maven Central. They are brought once (``make test`` does it) to
``<cache>/jars/clients``, by the resolvers that bring Delta's (:mod:`spillway.lake.jars`), and are
pinned here to coordinates and SHA-256: 19 MB, of which half is Kafka's client, whose types
Debezium's events are made of. What the engine doesn't load when it is embedded (Kafka Connect's web
server and its 40 jars) is left out.

There is no Java source here: users have a JRE, not a compiler. Py4J, which PySpark's wheel brings,
calls Java's objects as they are.

    python -m harness.java_clients      # brings the jars now
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final, Self

from py4j.java_gateway import CallbackServerParameters, GatewayParameters, JavaGateway

from harness.servers import cache_directory
from spillway.errors import JarsMissing, JavaMissing
from spillway.lake import jars
from spillway.lake.jars import Jar

_DEBEZIUM: Final = "3.6.3.Final"
_KAFKA: Final = "4.3.0"
_JACKSON: Final = "2.21.2"

PGJDBC: Final = Jar(
    "org.postgresql",
    "postgresql",
    "42.7.13",
    "6e0e4cc2d8cae902084f8a2b18728b073a6fd9d1f87c9d8bff8f298c18185b93",
)
CLIENTS: Final = (
    PGJDBC,
    *(
        Jar("io.debezium", f"debezium-{module}", _DEBEZIUM, sha256)
        for module, sha256 in {
            "api": "a91cec9b549c77538438aa6aa4b1090c1355de7b832afcb530bf1380bb5bb47e",
            "config": "c3b6e4f8d2f1073a825ae27c8dd36e03b40cd479515601e068f461ff6a1c885c",
            "connect-plugins": "e0db9f1bc6ad8a7c8ad906593b75235d0676348e12bbbca3e76ffa2c9e82c5da",
            "connector-common": "9dbc002de4474c68a456e86863ea86d560376c434d73dfc8b0c86167d0abf4a7",
            "connector-postgres": (
                "b66e6fd8a36460d3edde2b04c72c99505b60c5bc4a049e5d48bc5d039b46f7d9"
            ),
            "embedded": "e1ebba14d967dc478992ba58715d603a3a81a49a3beac4dac3b5f28d534f876e",
            "openlineage-api": "ee746ebedb622454f71f29a09efff9f40c5107571d6ea534dc1c66d4c43eebfe",
            "util": "cc39a8d1f570c49656cbe3176fcc8976f8d20ec053260c3eeba56e18d48e9c9b",
        }.items()
    ),
    *(
        Jar("org.apache.kafka", module, _KAFKA, sha256)
        for module, sha256 in {
            "connect-api": "7938f71e76e3b03cfba284a987a07d925533710166499264652e05eaba709429",
            "connect-json": "4af42f973b7ed4def6d394055e9b46ea7da38f69c9d5a45fa4614b492a01ad2e",
            "connect-runtime": "9c4a4a815302a23db37785729594f6362719fda62e6a74d812d1e2719995ec99",
            "connect-transforms": (
                "a1b6b347e26997e4e5ede01752a9ac572e8d938b48bf3a4b22c27890dca65b7e"
            ),
            "kafka-clients": "97a5b492d4ad658fd2dfba969fa0e403c2e38c971fb1e083da4e391471925fc1",
        }.items()
    ),
    Jar(
        "com.fasterxml.jackson.core",
        "jackson-annotations",
        "2.21",
        "53ca085f4a150f703f49e1aabd935bd03b43e1ea3d55d135438292af22cef56b",
    ),
    *(
        Jar(f"com.fasterxml.jackson.{group}", f"jackson-{module}", _JACKSON, sha256)
        for group, module, sha256 in (
            ("core", "core", "12e8655b100267b44d0f14d01b1f5082a5105e616174dc4307be1a761e92407b"),
            (
                "core",
                "databind",
                "8c982f01f148d805f0aaac2339011244757e0df7c6ff8951f2fa3f433b8ed849",
            ),
            (
                "datatype",
                "datatype-jdk8",
                "e581bbf3fc5622d16b57366dd41e10fc56921fb202879de2ef487f87dd9b30e7",
            ),
            (
                "datatype",
                "datatype-jsr310",
                "a083d57cd1c4a28fefcc6bd071740779eb7fc1c22a3c1b40451b5477c443f02f",
            ),
            (
                "module",
                "module-blackbird",
                "5ed62cdcd357a24b73de9280e167aa014d7b4c17d04823844d482274cf07097e",
            ),
        )
    ),
    Jar(
        "com.datadoghq",
        "sketches-java",
        "0.8.2",
        "b24c3d175556eb381ef2b2f0a7dffe7cb1fb7a9f893f41260822b5ec6cb13cca",
    ),
    Jar(
        "org.apache.maven",
        "maven-artifact",
        "3.9.15",
        "f154c31f15ac97c37b9cdf9f8d63cde5053c470d2daf54df7dfd3bb3c9e501c6",
    ),
    Jar(
        "com.google.protobuf",
        "protobuf-java",
        "3.25.5",
        "8540247fad9e06baefa8fb45eb313802d019f485f14300e0f9d6b556ed88e753",
    ),
    *(
        Jar("org.slf4j", module, "1.7.36", sha256)
        for module, sha256 in {
            "slf4j-api": "d3ef575e3e4979678dc01bf1dcce51021493b4d11fb7f1be8ad982877c16a1c0",
            "slf4j-simple": "2f39bed943d624dfa8f4102d0571283a10870b6aa36f197a8a506f147010c10f",
        }.items()
    ),
)

#: What Java would take from its machine. pgjdbc sends the time zone when it connects, and a server
#: refuses the connection if Java's name of it is none of PostgreSQL's, such as PST.
_WHEREVER_IT_RUNS: Final = (
    "-Duser.timezone=UTC",
    "-Duser.language=en",
    "-Duser.country=US",
    "-Dfile.encoding=UTF-8",
)


def folder() -> Path:
    """Return where the clients' jars are kept."""
    return cache_directory().absolute() / "jars" / "clients"


class Jvm:
    """A JVM with the clients on its class path; *log* takes what it writes."""

    def __init__(self, log: Path) -> None:
        paths = jars.resolve(folder(), CLIENTS)
        spark = importlib.util.find_spec("pyspark")
        assert spark is not None
        assert spark.origin is not None
        (py4j,) = Path(spark.origin).parent.glob("jars/py4j-*.jar")
        self._log = log.open("ab")
        # It ends with its standard input, should this process be killed.
        self.process = subprocess.Popen(
            [
                jars.java_command(), "-Xmx512m", *_WHEREVER_IT_RUNS,
                "-cp", os.pathsep.join(map(str, (py4j, *paths))),
                "py4j.GatewayServer", "--die-on-broken-pipe", "--enable-auth", "0",
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
        )  # fmt: skip
        assert self.process.stdout is not None
        port, token = (self.process.stdout.readline().decode().strip() for _ in range(2))
        assert port, f"the JVM did not start: {log.read_text()[-2000:]}"
        self.gateway = JavaGateway(
            gateway_parameters=GatewayParameters(
                port=int(port),
                auth_token=token,
                auto_convert=True,
                # What is let go of here stays in the JVM, which lives for one test. Py4J would say
                # so by finalizers, and those of a killed JVM connect in vain and log, in whatever
                # the collector interrupts: it left ``ast.parse`` of another test confused.
                enable_memory_management=False,
            ),
            callback_server_parameters=CallbackServerParameters(
                port=0, daemonize=True, daemonize_connections=True
            ),
        )
        server = self.gateway.java_gateway_server
        server.resetCallbackClient(
            server.getCallbackClient().getAddress(),
            self.gateway.get_callback_server().get_listening_port(),
        )
        #: what of Java is asked for by name
        self.names: Any = self.gateway.jvm

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def class_named(self, name: str) -> Any:
        """Return a ``java.lang.Class``."""
        return self.names.java.lang.Thread.currentThread().getContextClassLoader().loadClass(name)

    def kill(self) -> None:
        """End it as SIGKILL does."""
        if self._log.closed:
            return
        self.process.kill()
        self.process.wait()
        self.gateway.shutdown_callback_server()
        self.gateway.close()
        for pipe in (self.process.stdin, self.process.stdout, self._log):
            assert pipe is not None
            pipe.close()


def main() -> None:
    """Bring the jars."""
    try:
        jars.resolve(folder(), CLIENTS)
    except (JarsMissing, JavaMissing) as error:
        # Their tests say so, and are skipped.
        print(f"the Java clients can't be had: {error}", file=sys.stderr)


if __name__ == "__main__":
    main()
