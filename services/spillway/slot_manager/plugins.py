"""``/v1/plugins``: the output plugins that slots may have."""

from fastapi import APIRouter
from pydantic import Field

from spillway.slot_manager.dependencies import Engine, NoQuery
from spillway.slot_manager.json_fields import ResponseModel

router = APIRouter(prefix="/plugins", tags=["plugins"], dependencies=[NoQuery])


class PluginView(ResponseModel):
    """An output plugin."""

    name: str
    built_in: bool = Field(description="Spillway's own; others come with installed packages.")


class PluginList(ResponseModel):
    """All plugins."""

    plugins: list[PluginView]


@router.get("", operation_id="list_plugins")
async def list_plugins(engine: Engine) -> PluginList:
    """List the output plugins."""
    plugins = await engine.list_plugins()
    return PluginList(plugins=[PluginView.model_validate(plugin) for plugin in plugins])
