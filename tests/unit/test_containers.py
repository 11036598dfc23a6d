"""docker-compose.yml and Dockerfile against the commands and settings; nothing is built or started
here.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.commands import parse_command
from spillway.lake.job.run import _STOP_TIMEOUT_S
from spillway.settings import Settings
from spillway.storage.place import ObjectPath, lake_path
from spillway.subscriber.supervisor import STOP_GRACE_S

PROJECT = Path(__file__).resolve().parents[2]
COMPOSE = yaml.safe_load((PROJECT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = sorted(name for name, service in SERVICES.items() if "build" in service)


@pytest.mark.parametrize("name", OURS)
def test_commands_exist(name: str) -> None:
    assert parse_command(SERVICES[name]["command"])


@pytest.mark.parametrize("name", OURS)
def test_variables_exist(name: str) -> None:
    known = {variable.name for variable in Settings.variables()} | {"SPILLWAY_JARS"}
    known |= {"AWS_ENDPOINT_URL_S3", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"}
    assert set(SERVICES[name]["environment"]) <= known


@pytest.mark.parametrize("name", OURS)
def test_something_reaps_what_killed_jobs_leave(name: str) -> None:
    assert SERVICES[name]["init"] is True


@pytest.mark.parametrize("name", OURS)
def test_volumes_belong_to_the_user_who_writes_to_them(name: str) -> None:
    image = (PROJECT / "Dockerfile").read_text()
    user = re.search(r"^USER (\S+)$", image, re.MULTILINE)
    assert user is not None
    made = re.search(r"install --directory --owner=(\S+) .*?--mode=\S+ (.+)$", image, re.MULTILINE)
    assert made is not None
    assert made[1] == user[1]
    assert image.index(made[0]) < image.index(user[0])
    mounted = {volume.split(":")[1] for volume in SERVICES[name].get("volumes", [])}
    assert mounted <= set(made[2].split())


@pytest.mark.parametrize("name", OURS)
def test_a_stop_waits_as_long_as_the_program_may_take(name: str) -> None:
    # Docker's own ten seconds would cut every batch.
    takes_s = _STOP_TIMEOUT_S if "lake" in SERVICES[name]["command"] else STOP_GRACE_S * 2
    grace = SERVICES[name]["stop_grace_period"]
    amount, unit = int(grace[:-1]), {"s": 1, "m": 60}[grace[-1]]
    assert amount * unit > takes_s


def test_what_stays_up_is_started_again() -> None:
    for name, service in SERVICES.items():
        # A job is run by hand and ends by itself.
        stays = not {"lake", "lake-s3"} & set(service.get("profiles", [])) or name == "minio"
        assert (service.get("restart") == "unless-stopped") is stays, name


def test_health_is_that_of_the_process() -> None:
    # Who is unhealthy is killed by some orchestrators; a source that is away is no reason for that.
    assert "/healthz" in SERVICES["spillway"]["healthcheck"]["test"][-1]


def test_a_token_is_asked_for() -> None:
    assert parse_command(SERVICES["spillway"]["command"])["host"] == "0.0.0.0"
    assert ":?" in SERVICES["spillway"]["environment"]["SPILLWAY_TOKEN"]


def test_ports_are_the_services_own() -> None:
    parameters = parse_command(SERVICES["spillway"]["command"])
    inside = {parameters["http_port"], parameters["grpc_port"]}
    assert {int(port.rpartition(":")[2]) for port in SERVICES["spillway"]["ports"]} == inside
    # Published on the host's loopback address only.
    assert all(port.startswith("127.0.0.1:") for port in SERVICES["spillway"]["ports"])


def test_what_is_referred_to_is_there() -> None:
    for service in SERVICES.values():
        assert set(service.get("depends_on", {})) <= set(SERVICES)
        for volume in service.get("volumes", []):
            assert volume.split(":")[0] in COMPOSE["volumes"]
        for config in service.get("configs", []):
            assert config["source"] in COMPOSE["configs"]
        for dependency, condition in service.get("depends_on", {}).items():
            assert condition == {"condition": "service_healthy"}
            assert "healthcheck" in SERVICES[dependency]


def test_the_lake_on_object_storage_is_where_the_store_has_a_bucket() -> None:
    job, store = SERVICES["lake-s3"], SERVICES["minio"]
    address = lake_path(parse_command(job["command"])["path"])
    assert isinstance(address, ObjectPath)
    assert f"/data/{address.bucket} " in store["entrypoint"][-1]
    assert job["environment"]["AWS_ENDPOINT_URL_S3"] == "http://minio:9000"
    given, wanted = job["environment"], store["environment"]
    assert given["AWS_ACCESS_KEY_ID"] == wanted["MINIO_ROOT_USER"]
    assert given["AWS_SECRET_ACCESS_KEY"] == wanted["MINIO_ROOT_PASSWORD"]
    assert "--with s3" in (PROJECT / "Dockerfile").read_text()


def test_the_source_can_be_decoded() -> None:
    assert "wal_level=logical" in SERVICES["postgres"]["command"]


def test_the_image_copies_what_is_there() -> None:
    lines = (PROJECT / "Dockerfile").read_text().splitlines()
    for line in lines:
        if match := re.match(r"COPY (?!--from)(.+) \S+$", line):
            for name in match[1].split():
                assert (PROJECT / name).exists(), name
