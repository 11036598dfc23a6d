"""How a source's server is reached for SQL: by what its pg_hba.conf asks for, with TLS, and not
at all.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import pytest

from harness.certificates import Authority
from spillway.walsender.failures import WireError
from spillway.walsender.sql.upstream import Upstream

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import ClusterFactory

HBA = """
local all all trust
hostssl all over_tls all scram-sha-256
host all by_md5 all md5
host all by_password all password
host all by_scram all scram-sha-256
host all postgres all trust
"""


def test_ways_in(fresh_cluster: ClusterFactory, tmp_path: Path) -> None:
    authority = Authority.make(tmp_path)
    pair = authority.sign("server")
    cluster = fresh_cluster(18)
    owner = cluster.data_directory.stat()
    for name, path in (("server.crt", pair.certificate), ("server.key", pair.key)):
        file = cluster.data_directory / name
        file.write_bytes(path.read_bytes())
        file.chmod(0o600)
        os.chown(file, owner.st_uid, owner.st_gid)
    cluster.execute("ALTER SYSTEM SET ssl = on")
    for name in ("over_tls", "by_password", "by_scram"):
        cluster.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'a secret'")
    with cluster.connect() as connection:
        connection.execute("SET password_encryption = 'md5'")
        connection.execute("CREATE ROLE by_md5 LOGIN PASSWORD 'a secret'")
    (cluster.data_directory / "pg_hba.conf").write_text(HBA)
    cluster.execute("SELECT pg_reload_conf()")
    at = f"host=127.0.0.1 port={cluster.port} dbname=postgres password='a secret'"
    verified = f"sslmode=verify-full sslrootcert={authority.file}"

    async def ways() -> None:
        for more in (
            "user=by_md5 sslmode=disable",
            "user=by_password sslmode=disable",
            "user=by_scram sslmode=disable require_auth=scram-sha-256",
            f"user=over_tls {verified} channel_binding=require",
            f"user=over_tls {verified} sslnegotiation=direct",
            "user=over_tls",
        ):
            upstream = await Upstream.open(f"{at} {more}", {})
            assert upstream.parameters["session_authorization"] in more
            await upstream.close()
        for more, told in (
            ("user=by_scram password=wrong", "password authentication failed"),
            ("user=over_tls sslmode=disable", "no pg_hba.conf entry"),
            ("user=by_md5 require_auth=scram-sha-256", "authentication method requirement"),
            ("user=by_password sslmode=require channel_binding=require", "channel binding"),
            (
                f"user=over_tls sslmode=verify-ca sslrootcert={tmp_path / 'other.ca.pem'}",
                "certificate verify failed",
            ),
            ("user=by_scram target_session_attrs=standby", "the server is not standby"),
            ("user=by_scram dbname=none", 'database "none" does not exist'),
        ):
            with pytest.raises(WireError) as refused:
                await Upstream.open(f"{at} {more}", {})
            assert told in refused.value.message, more
            assert "a secret" not in refused.value.message
        cluster.stop()
        with pytest.raises(WireError) as down:
            await Upstream.open(f"{at} user=by_scram", {})
        assert down.value.sqlstate == "08001"

    Authority.make(tmp_path, "other")
    asyncio.run(asyncio.wait_for(ways(), 60))
