"""What happens to a page while the site is built: equations become MathML, wide parts can be scrolled by keyboard."""

from __future__ import annotations

import html
import re
from typing import Any

from math_core import LatexError, LatexToMathML
from mkdocs.exceptions import PluginError

_EQUATION = re.compile(r'<(span|div) class="arithmatex">(.*?)</\1>', re.S)
_TABLE = re.compile(r"<table>.*?</table>", re.S)
_CONVERTER = LatexToMathML(fancy_error=False)


def on_page_content(content: str, page: Any, **_: Any) -> str:
    """Convert the equations that `pymdownx.arithmatex` found, and give wide parts a box of their own to scroll in."""

    def converted(found: re.Match[str]) -> str:
        latex = html.unescape(found[2]).strip()[2:-2]  # without \( \) or \[ \]
        display = found[1] == "div"
        try:
            mathml = _CONVERTER.convert_with_local_state(latex, displaystyle=display)
        except LatexError as error:
            raise PluginError(f"{page.file.src_uri}: cannot convert the equation {latex!r}: {error}") from None
        return _scrollable(mathml) if display else mathml

    return _TABLE.sub(lambda found: _scrollable(found[0]), _EQUATION.sub(converted, content))


def _scrollable(part: str) -> str:
    return f'<div class="scrollable" tabindex="0">{part}</div>'


def on_post_page(output: str, **_: Any) -> str:
    """Name the theme's search dialog for screen readers."""
    dialog = 'data-md-component="search" role="dialog"'
    return output.replace(dialog, f'{dialog} aria-label="Search"')


def on_post_template(output_content: str, template_name: str, **_: Any) -> str:
    """The same for the page that says that there is no such page."""
    return on_post_page(output_content) if template_name == "404.html" else output_content
