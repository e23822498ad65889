"""`federec methods`: what can be trained, and its settings."""

from __future__ import annotations

from typer import Argument


def methods(
    name: str | None = Argument(None, help="Show the settings of this method or plug-in."),
) -> None:
    """List methods and plug-ins, or the settings of one."""
    from federec.methods.presets import presets
    from federec.methods.registry import METHODS, method_class
    from federec.plugins.registry import PLUGINS
    from federec.reporting.tables import methods_table, presets_table, settings_table

    if name is None:
        methods_table(METHODS.values(), PLUGINS.values())
    else:
        settings_table(name, PLUGINS[name] if name in PLUGINS else method_class(name))
        presets_table(presets(name))
