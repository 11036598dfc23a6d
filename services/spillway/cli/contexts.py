"""Contexts: services by name, so that `prod` need not be spelt out each time.

One file, ``contexts.json`` in ``$XDG_CONFIG_HOME/spillway`` (``~/.config/spillway``), of its owner
alone: a token may stand in it. One that others may read or write is refused, as ssh refuses a key
of that kind: who writes there decides where tokens are sent. A token is better only named, by a
file or a variable that holds it. The file is replaced whole; two commands that change it at once
leave one of the two changes, never half of each.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from spillway.errors import InvalidRequest, NotFound

if TYPE_CHECKING:
    from collections.abc import Mapping

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
#: Nobody has so many services; a file that is larger is another one.
_FILE_BYTES_MAX: Final = 1 << 20
_TOKEN_BYTES_MAX: Final = 64 << 10
_GRPC_PORT: Final = 50051


@dataclass(frozen=True, slots=True)
class Context:
    """Where one service is, and what is shown to it."""

    url: str
    #: host:port; None: the URL's host, at gRPC's usual port
    grpc: str | None = None
    #: the token itself, or where it is; at most one of the three
    token: str | None = field(default=None, repr=False)
    token_file: str | None = None
    token_env: str | None = None
    tls_ca: str | None = None
    tls_client_cert: str | None = None
    tls_client_key: str | None = None
    tls_server_name: str | None = None

    def variables(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Give what it says as the variables that say the same.

        Raises:
            InvalidRequest: the token is not where it should be.
        """
        token = self._token(environment)
        given = {
            "SPILLWAY_URL": self.url,
            "SPILLWAY_GRPC": self.grpc or grpc_of(self.url),
            "SPILLWAY_TOKEN": token,
            "SPILLWAY_TLS_CA": self.tls_ca,
            "SPILLWAY_TLS_CLIENT_CERT": self.tls_client_cert,
            "SPILLWAY_TLS_CLIENT_KEY": self.tls_client_key,
            "SPILLWAY_TLS_SERVER_NAME": self.tls_server_name,
        }
        return {name: value for name, value in given.items() if value is not None}

    @property
    def has_token(self) -> bool:
        """Whether something is shown to the service."""
        return not (self.token is None and self.token_file is None and self.token_env is None)

    @property
    def token_is(self) -> str:
        """Where the token is, without the token."""
        if self.token is not None:
            return "stored here"
        if self.token_file is not None:
            return f"in the file {self.token_file}"
        return "none" if self.token_env is None else f"in the variable {self.token_env}"

    def _token(self, environment: Mapping[str, str]) -> str | None:
        if self.token_env is not None:
            token = environment.get(self.token_env, "")
            if not token:
                raise InvalidRequest(
                    f"{self.token_env} is not set, and the context's token should be there",
                    hint=f"Set {self.token_env} to the service's token.",
                )
            return token
        if self.token_file is None:
            return self.token
        path = Path(self.token_file)
        try:
            with path.open("rb") as file:
                token = file.read(_TOKEN_BYTES_MAX).decode().strip()
        except OSError as error:
            raise InvalidRequest(
                f"the context's token can't be read from {path}: {error.strerror}",
                hint="Name a file that this user may read, by `spillway context add --replace`.",
            ) from None
        except UnicodeDecodeError:
            token = ""
        if not token:
            raise InvalidRequest(
                f"{path} holds no token", hint="Write the service's token there, and nothing else."
            )
        return token


@dataclass(slots=True)
class Contexts:
    """All contexts of a user."""

    path: Path
    by_name: dict[str, Context] = field(default_factory=dict)
    #: the one that is used where nothing else is said
    current: str | None = None

    @classmethod
    def load(cls, environment: Mapping[str, str] = os.environ) -> Self:
        """Read the user's file; without one there is no context.

        Raises:
            InvalidRequest: it can't be read, or belongs to others too.
        """
        path = _path(environment)
        try:
            with path.open("rb") as file:
                _check_owner(path, os.fstat(file.fileno()))
                text = file.read(_FILE_BYTES_MAX)
        except (FileNotFoundError, NotADirectoryError):
            return cls(path)
        except OSError as error:
            raise InvalidRequest(
                f"{path} can't be read: {error.strerror}", hint="Make it readable for its owner."
            ) from None
        try:
            stored = json.loads(text)
            known = {one.name for one in dataclasses.fields(Context)}
            by_name = {
                str(name): Context(**{k: str(v) for k, v in values.items() if k in known})
                for name, values in stored["contexts"].items()
            }
            current = stored.get("current")
        except (ValueError, KeyError, TypeError, AttributeError):
            raise InvalidRequest(
                f"{path} holds no contexts",
                hint="Mend it, or remove it and add them anew by `spillway context add`.",
            ) from None
        return cls(path, by_name, None if current is None else str(current))

    def save(self) -> None:
        """Replace the file, for its owner alone.

        Raises:
            InvalidRequest: it can't be written.
        """
        from spillway.storage.durable_files import replace_file  # noqa: PLC0415 - few commands do

        stored: dict[str, Any] = {
            "current": self.current,
            "contexts": {
                name: {k: v for k, v in dataclasses.asdict(one).items() if v is not None}
                for name, one in self.by_name.items()
            },
        }
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_file(self.path, json.dumps(stored, indent=2) + "\n", mode=0o600)
        except OSError as error:
            raise InvalidRequest(
                f"{self.path} can't be written: {error.strerror}",
                hint="Set XDG_CONFIG_HOME to a directory that this user may write to.",
            ) from None

    def get(self, name: str) -> Context:
        """Look one up.

        Raises:
            NotFound: there is none of that name.
        """
        try:
            return self.by_name[name]
        except KeyError:
            from spillway.cli.similar import did_you_mean  # noqa: PLC0415 - on errors alone

            raise NotFound(
                f'context "{name}" does not exist',
                hint=did_you_mean(name, self.by_name)
                + "`spillway context list` lists what exists; `spillway context add` makes one.",
            ) from None


def check_name(name: str) -> None:
    """See that a context can have a name.

    Raises:
        InvalidRequest: it can't.
    """
    if _NAME.fullmatch(name) is None:
        raise InvalidRequest(
            f"{name!r} can't be a context's name",
            hint="Use letters, digits, dots, dashes and underscores, 63 at most.",
        )


def grpc_of(url: str) -> str:
    """Return where gRPC usually is of a service whose REST is at *url*."""
    from urllib.parse import urlsplit  # noqa: PLC0415 - as above

    parts = urlsplit(url)
    host = parts.hostname or ""
    address = f"[{host}]:{_GRPC_PORT}" if ":" in host else f"{host}:{_GRPC_PORT}"
    return f"https://{address}" if parts.scheme == "https" else address


def _path(environment: Mapping[str, str]) -> Path:
    home = environment.get("XDG_CONFIG_HOME", "")
    # A relative one is no directory, says the specification.
    base = Path(home) if home.startswith("/") else Path.home() / ".config"
    return base / "spillway" / "contexts.json"


def _check_owner(path: Path, found: os.stat_result) -> None:
    if stat.S_IMODE(found.st_mode) & 0o077:
        raise InvalidRequest(
            f"{path} may be read or written by others (mode {stat.S_IMODE(found.st_mode):o})",
            hint=f"Take that from them: chmod 600 {path}",
        )
    if found.st_uid not in (os.getuid(), 0):
        raise InvalidRequest(
            f"{path} belongs to another user", hint="Remove it, and add your contexts anew."
        )
