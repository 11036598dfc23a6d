"""A subscription of kind ``postgres``, through a service's REST: what
:class:`harness.postgresql_subscription.Subscription` is for PostgreSQL's own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from harness.postgresql_subscription import Subscription, wait_until

if TYPE_CHECKING:
    from harness.service import Service


@dataclass
class AppliedSubscription(Subscription):
    """*wished* are fields of the target; *declared* those of the subscription; *conninfo* is the
    target's DSN.
    """

    service: Service = field(kw_only=True)
    source: str = "main"
    declared: dict[str, Any] = field(default_factory=dict)
    #: a program that failed so often does not get well; None: it is killed, too
    gives_up_after: int | None = 1

    def create(self, **more: Any) -> None:
        """POST /v1/subscriptions."""
        self.service.call("POST", "/subscriptions", json=self.body(**more))

    def body(self, **more: Any) -> dict[str, Any]:
        """What :meth:`create` sends."""
        return {
            "name": self.name,
            "source": self.source,
            "database": self.publication.database.name,
            "publications": self.publication.names,
            "target": {"kind": "postgres", "dsn": self.conninfo, **self.wished},
            **self.declared,
            **more,
        }

    def view(self) -> dict[str, Any]:
        """GET /v1/subscriptions/NAME."""
        answer: dict[str, Any] = self.service.call("GET", f"/subscriptions/{self.name}")
        return answer

    def drop(self) -> None:
        self.service.call("DELETE", f"/subscriptions/{self.name}")

    def stop(self) -> None:
        self.service.call("POST", f"/subscriptions/{self.name}/disable")

    def go_on(self) -> None:
        """Enable it."""
        self.service.call("POST", f"/subscriptions/{self.name}/enable")

    def states(self) -> dict[str, int]:
        if self.gives_up_after is not None:
            assert self.view()["restarts"] <= self.gives_up_after, self._told()
        if self.database.value("SELECT to_regclass('spillway.tables')") is None:
            return {}
        found = self.database.query(
            "SELECT state::text, count(*) FROM spillway.tables WHERE subscription = %s GROUP BY 1",
            [self.name],
        )
        return dict(found)

    def wait_streaming(self) -> None:
        """Wait until it follows its slot."""
        wait_until(f"{self.name} streams", lambda: self.view()["state"] == "streaming", self._told)

    def _told(self) -> str:
        log = self.service.call("GET", f"/subscriptions/{self.name}/log")["lines"]
        view = self.view()
        return "\n".join(
            [
                f"{view['state']} {view['error']} {view['table_states']}",
                *log[-60:],
                self.database.cluster.log_tail(30),
            ]
        )
