"""``/v1/users``."""

from fastapi import APIRouter, Response

from spillway.slot_manager.dependencies import NoQuery, UserRegistry
from spillway.slot_manager.users.models import AlterUser, CreateUser, UserList, UserView

router = APIRouter(prefix="/users", tags=["users"], dependencies=[NoQuery])


@router.post("", status_code=201, operation_id="create_user")
async def create_user(body: CreateUser, users: UserRegistry, response: Response) -> UserView:
    """Make a user, who may then come in over PostgreSQL's own protocol (CREATE ROLE)."""
    user = await users.create(
        body.name,
        password=body.password,
        verifier=body.verifier,
        databases=body.databases,
        slots=body.slots,
        manage_slots=body.manage_slots,
        run_sql=body.run_sql,
    )
    response.headers["Location"] = f"/v1/users/{user.name}"
    return UserView.model_validate(user)


@router.get("", operation_id="list_users")
async def list_users(users: UserRegistry) -> UserList:
    """List the users."""
    return UserList(users=[UserView.model_validate(user) for user in await users.list()])


@router.get("/{name}", operation_id="get_user")
async def get_user(name: str, users: UserRegistry) -> UserView:
    """Show a user."""
    return UserView.model_validate(await users.get(name))


@router.patch("/{name}", operation_id="alter_user")
async def alter_user(name: str, body: AlterUser, users: UserRegistry) -> UserView:
    """Change a user's password or rights; who is connected stays so (ALTER ROLE)."""
    return UserView.model_validate(await users.alter(name, **body.changes()))


@router.delete("/{name}", status_code=204, operation_id="drop_user")
async def drop_user(name: str, users: UserRegistry) -> None:
    """Drop a user; who is connected stays so (DROP ROLE)."""
    await users.drop(name)
