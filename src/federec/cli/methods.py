"""`federec methods`: what can be trained, and its settings."""

from __future__ import annotations

from typer import Argument

from federec.cli.names import METHODS as METHOD_NAMES
from federec.cli.names import PLUGINS as PLUGIN_NAMES
from federec.cli.names import one_of
from federec.cli.output import JSON, show


def methods(
    name: str | None = Argument(
        None,
        autocompletion=one_of(*METHOD_NAMES, *PLUGIN_NAMES),
        help="Show the settings of this method or plug-in: a name, path/to/mine.py:Mine or package.module:Mine.",
    ),
    as_json: bool = JSON,
) -> None:
    """List methods and plug-ins, or the settings of one.

    Those of installed packages are among them.
    """
    from federec.methods.presets import presets
    from federec.methods.registry import METHOD, METHODS
    from federec.plugins.registry import PLUGIN, PLUGINS, either
    from federec.reporting.tables import method_row, methods_table, plugin_row, settings_row, settings_table

    if name is not None:
        show(settings_row(name, either().find(name), presets(name)), as_json, settings_table)
        return
    rows = [*map(method_row, METHODS.values()), *map(plugin_row, PLUGINS.values())]
    rows += [
        {"name": name, "kind": kind.word, "about": f"from an installed package: {point.value}"}
        for kind in (METHOD, PLUGIN)
        for name, points in kind.offered().items()
        for point in points
    ]
    show(rows, as_json, methods_table)
