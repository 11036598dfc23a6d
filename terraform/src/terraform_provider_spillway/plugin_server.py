"""How Terraform runs a provider: HashiCorp's go-plugin over gRPC.

Terraform starts the executable, which serves gRPC on a Unix socket and says on one line of its
output where, and by which certificate it is known; the certificate is made for the one process.
Terraform ends it by a call, or by a signal.

``tf`` has a runner; this one differs in four ways. The socket's directory is the process's own, and
no key is left on disk. An interrupt ends waits, not calls in progress, of which the states would be
lost. The process ends when whoever started it is gone. Attributes may be large.
"""

from __future__ import annotations

import base64
import datetime as dt
import os
import signal
import sys
import tempfile
import threading
from concurrent import futures
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import grpc
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from tf.gen import grpc_controller_pb2 as controller
from tf.gen import grpc_controller_pb2_grpc as controller_rpc
from tf.gen import grpc_stdio_pb2_grpc as stdio_rpc
from tf.gen import tfplugin_pb2_grpc as provider_rpc

from terraform_provider_spillway.protocol import Servicer

if TYPE_CHECKING:
    from terraform_provider_spillway.provider import SpillwayProvider

#: How a plugin knows that Terraform started it; the same for every provider, and no secret.
_COOKIE_NAME: Final = "TF_PLUGIN_MAGIC_COOKIE"
_COOKIE: Final = "d602bf8f470bc67ca7faa0386276bbdd4330efaf76d1a219cb4d6991ca9872b2"
_CORE_PROTOCOL: Final = 1
_PLUGIN_PROTOCOL: Final = 6
#: Terraform has ten operations at once unless told otherwise; each may wait.
_WORKERS: Final = 64
_MESSAGE_BYTES_MAX: Final = 256 * 1024 * 1024
_LOOK_FOR_PARENT_S: Final = 0.5
_DAY: Final = dt.timedelta(days=1)


def started_by_terraform() -> bool:
    """Say whether Terraform started this process, and not a person."""
    return os.environ.get(_COOKIE_NAME) == _COOKIE


class _Controller(controller_rpc.GRPCControllerServicer):
    def __init__(self, ended: threading.Event) -> None:
        self._ended = ended

    def Shutdown(self, request: Any, context: Any) -> Any:
        self._ended.set()
        return controller.Empty()


class _Stdio(stdio_rpc.GRPCStdioServicer):
    def StreamStdio(self, request: Any, context: Any) -> Any:
        # Nothing is written to the output but the handshake; what is logged goes to stderr, which
        # core reads itself.
        return iter(())


def serve(provider: SpillwayProvider) -> None:
    """Serve until Terraform says that it is done, or is gone."""
    ended = threading.Event()
    parent = os.getppid()
    # Terraform gets the terminal's Ctrl-C too, and says what is to be done.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    server = grpc.server(
        futures.ThreadPoolExecutor(max_workers=_WORKERS),
        options=[
            ("grpc.max_receive_message_length", _MESSAGE_BYTES_MAX),
            ("grpc.max_send_message_length", _MESSAGE_BYTES_MAX),
        ],
    )
    provider_rpc.add_ProviderServicer_to_server(Servicer(provider), server)
    controller_rpc.add_GRPCControllerServicer_to_server(_Controller(ended), server)
    stdio_rpc.add_GRPCStdioServicer_to_server(_Stdio(), server)
    key, certificate = _self_signed()
    # A socket's path has a hundred bytes, wherever TMPDIR is.
    with tempfile.TemporaryDirectory(prefix="tf-spillway-", dir=_short_tmp()) as folder:
        socket = Path(folder) / "provider.sock"
        server.add_secure_port(
            f"unix:{socket}",
            grpc.ssl_server_credentials(
                [(key, certificate.public_bytes(serialization.Encoding.PEM))]
            ),
        )
        server.start()
        known_by = base64.b64encode(certificate.public_bytes(serialization.Encoding.DER))
        handshake = (_CORE_PROTOCOL, _PLUGIN_PROTOCOL, "unix", socket, "grpc")
        sys.stdout.write("|".join((*map(str, handshake), known_by.decode().rstrip("="))) + "\n")
        sys.stdout.flush()
        while not ended.wait(_LOOK_FOR_PARENT_S) and os.getppid() == parent:
            pass
        provider.stopping.set()
        server.stop(grace=1).wait()


def _short_tmp() -> str | None:
    return None if len(tempfile.gettempdir()) < 60 else "/tmp"  # noqa: S108 - the folder in it is ours


def _self_signed() -> tuple[bytes, x509.Certificate]:
    """Make the key and the certificate of this process."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _DAY)
        .not_valid_after(now + 365 * _DAY)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(
            x509.ExtendedKeyUsage([x509.oid.ExtendedKeyUsageOID.SERVER_AUTH]), critical=False
        )
        .sign(key, hashes.SHA256())
    )
    return (
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
        certificate,
    )
