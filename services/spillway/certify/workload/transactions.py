"""The frame around changes: blocks, savepoints, two-phase commit, replication origins."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spillway.certify.workload.scene import Kinds, Scene

_SAVEPOINTS_MAX = 8
_PREPARED_MAX = 3
_ORIGINS_MAX = 2


def begin(scene: Scene) -> list[str]:
    """BEGIN, of any isolation level."""
    level = scene.random.choice(
        ["", "", "", "", " ISOLATION LEVEL REPEATABLE READ", " ISOLATION LEVEL SERIALIZABLE"]
    )
    return [f"BEGIN{level}"]


def savepoint(scene: Scene) -> list[str]:
    """SAVEPOINT, and statements about those that are there."""
    points = scene.session.savepoints
    if points and (len(points) >= _SAVEPOINTS_MAX or scene.chance(0.5)):
        place = scene.random.randrange(len(points))
        name = points[place]
        if scene.chance(0.5):
            del points[place:]
            return [f"RELEASE SAVEPOINT {name}"]
        del points[place + 1 :]
        scene.session.forget_view()
        return [f"ROLLBACK TO SAVEPOINT {name}"]
    name = f"sp{scene.shared.next_number()}"
    points.append(name)
    return [f"SAVEPOINT {name}"]


def commit(scene: Scene) -> list[str]:  # noqa: ARG001 - a kind's form
    """COMMIT."""
    return ["COMMIT"]


def commit_and_chain(scene: Scene) -> list[str]:  # noqa: ARG001 - a kind's form
    """COMMIT AND CHAIN."""
    return ["COMMIT AND CHAIN"]


def rollback(scene: Scene) -> list[str]:  # noqa: ARG001 - a kind's form
    """ROLLBACK."""
    return ["ROLLBACK"]


def prepare(scene: Scene) -> list[str]:
    """PREPARE TRANSACTION."""
    if len(scene.shared.prepared) >= _PREPARED_MAX or scene.session.exclusive:
        return ["COMMIT"]
    gid = f"{scene.shared.cluster_prefix}-{scene.shared.next_number()}"
    return [f"PREPARE TRANSACTION '{gid}'"]


def finish_prepared(scene: Scene) -> list[str] | None:
    """COMMIT PREPARED or ROLLBACK PREPARED."""
    if not scene.shared.prepared:
        return None
    gid = scene.random.choice(sorted(scene.shared.prepared))
    word = "ROLLBACK" if scene.chance(0.3) else "COMMIT"
    return [f"{word} PREPARED '{gid}'"]


def origin(scene: Scene) -> list[str] | None:
    """A transaction that is replayed from a replication origin."""
    if not scene.shared.superuser:
        return None
    if len(scene.shared.origins) < _ORIGINS_MAX:
        name = f"{scene.shared.cluster_prefix}_o{scene.shared.next_number()}"
        scene.shared.origins.append(name)
        return [f"SELECT pg_replication_origin_create('{name}')"]
    name = scene.random.choice(scene.shared.origins)
    number = scene.shared.next_number()
    first, _ = scene.ids(1)
    return [
        f"SELECT pg_replication_origin_session_setup('{name}')",
        "BEGIN",
        f"INSERT INTO w_0.moved VALUES ({first}, 'from an origin', true)",
        f"SELECT pg_replication_origin_xact_setup('0/{number:X}', '2020-01-01 00:00Z')",
        *scene.random.choice(
            [
                ["COMMIT"],
                ["SAVEPOINT a", f"UPDATE w_0.moved SET v = 'again' WHERE id = {first}", "COMMIT"],
                ["SELECT pg_logical_emit_message(false, 'origin', 'x')", "ROLLBACK"],
            ]
        ),
        "SELECT pg_replication_origin_session_reset()",
    ]


#: What ends a block.
ENDS: Kinds = ((62, commit), (3, commit_and_chain), (22, rollback), (13, prepare))
