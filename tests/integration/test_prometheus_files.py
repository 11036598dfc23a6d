"""The rules and the dashboard of ``ops/``, held against ``/metrics`` of a running service: each
expression is parsed by Prometheus's own grammar, and each metric and label that it names is there.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import promql_parser
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from harness.receivers import webhook
from harness.service import service_in_process

if TYPE_CHECKING:
    from harness.cluster import Cluster

OPS = Path(__file__).parents[2] / "ops"
#: What Prometheus itself makes or adds.
OF_PROMETHEUS = {"up": {"job", "instance"}}
ADDED = {"job", "instance"}


def rules() -> list[dict[str, Any]]:
    document = yaml.safe_load((OPS / "prometheus/spillway.rules.yml").read_text())
    return [rule for group in document["groups"] for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((OPS / "grafana/spillway.json").read_text())["panels"]
    return found


def expressions() -> list[str]:
    drawn = [target["expr"] for panel in panels() for target in panel["targets"]]
    return [
        *(rule["expr"] for rule in rules()),
        # What Grafana puts in.
        *(one.replace("$__rate_interval", "1m").replace("$source", ".*") for one in drawn),
    ]


def selectors(node: Any) -> list[tuple[str, set[str]]]:
    """Give the metrics of a parsed expression, each with the labels that are matched."""
    found: list[tuple[str, set[str]]] = []
    if isinstance(node, promql_parser.VectorSelector):
        found.append((node.name or "", {one.name for one in node.matchers.matchers}))
    for name in ("expr", "lhs", "rhs", "vs", "vector_selector", "param"):
        child = getattr(node, name, None)
        if child is not None:
            found += selectors(child)
    for child in getattr(node, "args", None) or ():
        found += selectors(child)
    return found


@pytest.mark.parametrize("expression", expressions())
def test_expressions_can_be_parsed(expression: str) -> None:
    assert selectors(promql_parser.parse(expression)) or "vector" in expression


def test_what_names_labels_finds_them() -> None:
    """What a test looks for must be able to be missed."""
    (found,) = selectors(promql_parser.parse('rate(a_total{b="c", d=~"e"}[5m])'))
    assert found == ("a_total", {"b", "d"})
    with pytest.raises(ValueError, match=r".*"):
        promql_parser.parse("rate(a[5m]")


def test_every_metric_and_label_is_there(tmp_path: Path, fresh_cluster: Any) -> None:
    cluster: Cluster = fresh_cluster(15)
    with webhook() as receiver, service_in_process(tmp_path / "data") as service:
        service.create_source(cluster.dsn())
        service.create_slot("s", "postgres")
        cluster.execute("CREATE TABLE t (id int PRIMARY KEY)")
        cluster.execute("INSERT INTO t SELECT generate_series(1, 10)")
        ((lsn,),) = cluster.query("SELECT pg_current_wal_flush_lsn()::text")
        service.wait_for("s", str(lsn))
        service.get("s")
        # A subscription that is declared and does not run has its states already.
        target = {"kind": "lake", "format": "parquet", "path": str(tmp_path / "lake")}
        body = {"name": "l", "source": "main", "database": "postgres", "target": target}
        service.call("POST", "/subscriptions", json={**body, "enabled": False})
        hook = {"kind": "webhook", "url": receiver.url}
        service.call("PUT", "/alerts/channels/c", json=hook)
        service.call("PUT", "/alerts/rules/r", json={"channels": ["c"]})
        labels: dict[str, set[str]] = {}
        names: set[str] = set()
        for family in text_string_to_metric_families(service.http.get("/metrics").text):
            names |= (
                {family.name, f"{family.name}_total"} if family.type == "counter" else {family.name}
            )
            for sample in family.samples:
                labels.setdefault(sample.name, set()).update(sample.labels)
        delivered = re.search(
            r'^spillway_slot_delivered_messages_total{.*slot="s".*} (\S+)$',
            service.http.get("/metrics").text,
            re.MULTILINE,
        )
        assert delivered is not None
        assert float(delivered[1]) >= 12
    # A certificate's, and what only a fault brings, have no samples here: their names are declared.
    declared = {"spillway_tls_certificate_expires_timestamp_seconds"}
    for expression in expressions():
        for name, matched in selectors(promql_parser.parse(expression)):
            if name in OF_PROMETHEUS:
                assert matched <= OF_PROMETHEUS[name]
                continue
            assert name in names | declared, f"{name} of {expression!r} is not in /metrics"
            if name in labels:
                missing = matched - labels[name] - ADDED
                assert not missing, f"{name} of {expression!r} has no labels {missing}"


def test_templates_of_rules_and_legends_name_labels_that_expressions_keep() -> None:
    for rule in rules():
        assert rule["labels"]["severity"] in {"warning", "critical"}
        assert rule["annotations"]["summary"]
        assert rule["annotations"]["description"]
    ids = [panel["id"] for panel in panels()]
    assert len(set(ids)) == len(ids)
