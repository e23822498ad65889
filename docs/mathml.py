"""For the site: equations become MathML while it is built, so that pages show them without JavaScript or network."""

from __future__ import annotations

import html
import re
from typing import Any

from math_core import LatexError, LatexToMathML
from mkdocs.exceptions import PluginError

_EQUATION = re.compile(r'<(span|div) class="arithmatex">(.*?)</\1>', re.S)
_CONVERTER = LatexToMathML(fancy_error=False)


def on_page_content(content: str, page: Any, **_: Any) -> str:
    """Convert what `pymdownx.arithmatex` found; an equation that cannot be converted stops the build."""

    def converted(found: re.Match[str]) -> str:
        latex = html.unescape(found[2]).strip()[2:-2]  # without \( \) or \[ \]
        display = found[1] == "div"
        try:
            mathml = _CONVERTER.convert_with_local_state(latex, displaystyle=display)
        except LatexError as error:
            raise PluginError(f"{page.file.src_uri}: cannot convert the equation {latex!r}: {error}") from None
        return f'<div class="equation">{mathml}</div>' if display else mathml

    return _EQUATION.sub(converted, content)
