"""The example for Kubernetes against the commands and settings; nothing is applied here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from harness.commands import parse_command
from spillway.lake.load.run import ENVIRONMENT
from spillway.settings import Settings

EXAMPLE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "lake-on-kubernetes.yaml"
OBJECTS: dict[str, dict[str, Any]] = {
    each["kind"]: each for each in yaml.safe_load_all(EXAMPLE.read_text())
}
POD: dict[str, Any] = OBJECTS["Deployment"]["spec"]["template"]
(CONTAINER,) = POD["spec"]["containers"]


def test_the_command_exists_and_keeps_running() -> None:
    options = parse_command(CONTAINER["args"])
    assert options["trigger"] == "continuous"
    (mount,) = [m for m in CONTAINER["volumeMounts"] if m["name"] == "lake"]
    assert str(options["path"]) == mount["mountPath"]


def test_variables_exist_and_secrets_are_there() -> None:
    known = {variable.name for variable in Settings.variables()} | {ENVIRONMENT}
    secret = OBJECTS["Secret"]
    for variable in CONTAINER["env"]:
        assert variable["name"] in known | {"SPILLWAY_GRPC"}
        if "valueFrom" in variable:
            wanted = variable["valueFrom"]["secretKeyRef"]
            assert wanted["name"] == secret["metadata"]["name"]
            assert secret["stringData"][wanted["key"]] == "", "nobody's secret is in an example"


def test_metrics_are_scraped_where_they_are_served() -> None:
    options = parse_command(CONTAINER["args"])
    (port,) = CONTAINER["ports"]
    assert options["metrics_port"] == port["containerPort"]
    assert options["metrics_host"] == "0.0.0.0"
    assert POD["metadata"]["annotations"]["prometheus.io/port"] == str(port["containerPort"])
    assert CONTAINER["livenessProbe"]["httpGet"] == {"path": "/metrics", "port": port["name"]}


def test_one_job_at_a_time_on_a_volume_that_is_claimed() -> None:
    spec = OBJECTS["Deployment"]["spec"]
    assert (spec["replicas"], spec["strategy"]["type"]) == (1, "Recreate")
    assert POD["metadata"]["labels"] == spec["selector"]["matchLabels"]
    volumes = {volume["name"]: volume for volume in POD["spec"]["volumes"]}
    assert {mount["name"] for mount in CONTAINER["volumeMounts"]} == set(volumes)
    claimed = volumes["lake"]["persistentVolumeClaim"]["claimName"]
    assert claimed == OBJECTS["PersistentVolumeClaim"]["metadata"]["name"]


def test_objects_are_of_kubernetes_schemas() -> None:
    """A field that is misspelt or in the wrong place is refused, as by `kubectl apply`."""
    version = kubernetes_validate.latest_version()
    for each in OBJECTS.values():
        kubernetes_validate.validate(each, version, strict=True)
    misspelt = {**OBJECTS["Deployment"], "spec": {**OBJECTS["Deployment"]["spec"], "replica": 1}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(misspelt, version, strict=True)
