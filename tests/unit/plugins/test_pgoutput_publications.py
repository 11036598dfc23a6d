"""What a pgoutput session keeps of publications, and which invalidation has it let go of what."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spillway.catalog.descriptor import (
    Memberships,
    PublicationOptions,
    RelationDescriptor,
    TableMembership,
)
from spillway.decoding.invalidations import CATALOG_SHIFT, WHOLE_CATALOG
from spillway.errors import UnknownPublication
from spillway.plugins.pgoutput_publications import PublicationCache, hash_of_oid

P, Q, SCHEMA = 16500, 16501, 2200
PUBLICATIONS, TABLES, SCHEMAS = (oid << CATALOG_SHIFT for oid in (6104, 6106, 6237))


def table(
    *publications: PublicationOptions,
    oid: int = 16400,
    members: tuple[int, ...] = (P,),
    schemas: tuple[int, ...] = (),
) -> RelationDescriptor:
    memberships = Memberships(oid, SCHEMA, tuple(map(TableMembership, members)), frozenset(schemas))
    return RelationDescriptor(
        oid, "public", "t", "r", "p", "d", (),
        database_publications=publications, memberships=(memberships,),
    )  # fmt: skip


OLD = PublicationOptions(P, "p")
NEW = replace(OLD, update=False)


@pytest.fixture
def cache() -> PublicationCache:
    def missing(name: str) -> None:
        raise UnknownPublication(name)

    return PublicationCache(["p", "p"], missing)


def updates(cache: PublicationCache, descriptor: RelationDescriptor) -> list[bool]:
    return [p.update for p in cache.published(descriptor)]


def test_the_hash_is_the_server_s() -> None:
    assert hash_of_oid(0) == 0
    assert hash_of_oid(1) == 0x514E28B7
    assert hash_of_oid(0xFFFFFFFF) == 0x81F16F39


def test_options_last_until_their_row_changes(cache: PublicationCache) -> None:
    # A table that nothing publishes has them loaded, too.
    assert updates(cache, table(NEW, oid=16401, members=())) == []
    assert updates(cache, table(OLD)) == [False]
    # Another publication's change: they are put together again, of the same rows.
    cache.invalidate(PUBLICATIONS | hash_of_oid(Q))
    assert updates(cache, table(OLD)) == [False]
    cache.invalidate(PUBLICATIONS | hash_of_oid(P))
    assert updates(cache, table(OLD)) == [True]
    cache.invalidate(PUBLICATIONS | WHOLE_CATALOG)
    assert updates(cache, table(NEW)) == [False]


def test_memberships_last_until_any_changes(cache: PublicationCache) -> None:
    assert updates(cache, table(OLD)) == [True]
    gone, schema = table(OLD, members=()), table(OLD, members=(), schemas=(P,))
    cache.invalidate(PUBLICATIONS | WHOLE_CATALOG)
    assert updates(cache, gone) == [True]
    cache.invalidate(TABLES | 1)
    assert updates(cache, gone) == []
    assert updates(cache, schema) == []
    cache.invalidate(SCHEMAS | 1)
    assert updates(cache, schema) == [True]


def test_only_what_is_looked_up_is_missed(cache: PublicationCache) -> None:
    assert cache.published(replace(table(), persistence="u")) == ()
    with pytest.raises(UnknownPublication):
        cache.published(table())
    assert updates(cache, table(OLD)) == [True]
    # It was dropped; but nothing says so before its row is invalidated.
    assert updates(cache, table()) == [True]
    cache.invalidate(PUBLICATIONS | hash_of_oid(P))
    with pytest.raises(UnknownPublication):
        cache.published(table())


def test_ancestors_are_asked_only_for_publications_of_tables() -> None:
    root = Memberships(16390, SCHEMA, (TableMembership(P),))
    leaf = table(OLD, members=())
    leaf = replace(leaf, memberships=(*leaf.memberships, root))
    cache = PublicationCache(["p"], lambda name: None)
    everything = replace(OLD, all_tables=True, via_root=True)
    (published,) = cache.published(replace(leaf, database_publications=(everything,)))
    assert published.publish_as == 16390
    cache.invalidate(PUBLICATIONS | WHOLE_CATALOG)
    (published,) = cache.published(leaf)
    assert published.publish_as == leaf.oid
