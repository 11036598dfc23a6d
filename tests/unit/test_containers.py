"""docker-compose.yml and Dockerfile against the commands and settings; nothing is built or started here."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.commands import parse_command
from spillway.lake.storage import ObjectPath, lake_path
from spillway.settings import Settings

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
