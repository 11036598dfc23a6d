"""Subscriptions of kind ``postgres`` end to end: created by REST, rows arrive, and when they are
dropped nothing of them is left.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.applied_subscription import AppliedSubscription
from harness.postgresql_subscription import Load, Publication
from harness.serve_process import ServeProcess

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.cluster import Database


@pytest.fixture(scope="module")
def serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    process = ServeProcess(tmp_path_factory.mktemp("apply") / "data")
    yield process
    process.stop()


def test_rows_arrive(serve: ServeProcess, pg15: Database, pg18: Database) -> None:
    service = serve.service()
    publication = Publication(pg15, 18, 4)
    service.create_source(pg15.dsn)
    subscription = AppliedSubscription("filled", pg18, publication, pg18.dsn, service=service)
    subscription.make_tables()
    publication.fill()
    subscription.create()
    with Load(publication, 1) as load:
        load.goes_on(200)
    subscription.wait_ready()
    subscription.wait_caught_up()
    subscription.check_equal()
    subscription.drop()
