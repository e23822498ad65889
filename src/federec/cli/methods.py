"""`federec methods`: what can be trained, and its settings."""

from __future__ import annotations

from typer import Argument


def methods(
    name: str | None = Argument(
        None, help="Show the settings of this method or plug-in: a name, path/to/mine.py:Mine or package.module:Mine."
    ),
) -> None:
    """List methods and plug-ins, those of installed packages among them, or the settings of one."""
    from federec.methods.presets import presets
    from federec.methods.registry import METHOD, METHODS
    from federec.plugins.registry import EITHER, PLUGIN, PLUGINS
    from federec.reporting.tables import methods_table, presets_table, settings_table

    if name is None:
        offered = [
            (f"{option}{name}", f"from an installed package: {point.value}")
            for option, kind in (("", METHOD), ("--with ", PLUGIN))
            for name, points in kind.offered().items()
            for point in points
        ]
        methods_table(METHODS.values(), PLUGINS.values(), offered)
    else:
        settings_table(name, EITHER.find(name))
        presets_table(presets(name))
