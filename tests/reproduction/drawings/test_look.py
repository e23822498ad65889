from itertools import combinations

import matplotlib
import pytest
from matplotlib.colors import to_rgb

from federec.reproduction.drawings.look import DARK, LIGHT, legend, panels, rendered, styled


def luminance(colour):
    parts = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in to_rgb(colour)]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


def contrast(a, b):
    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("look", [LIGHT, DARK], ids=lambda look: look.name)
def test_colours_are_seen_on_the_ground(look):
    assert contrast(look.ink, look.ground) > 7
    assert all(contrast(colour, look.ground) > 2 for colour in look.palette)
    assert len(set(look.palette)) == len(look.palette)


def test_curves_differ_in_colour_and_line_so_that_no_two_look_alike():
    styles = styled(LIGHT, list("abcdef"))
    for a, b in combinations(styles.values(), 2):
        assert a["color"] != b["color"]
    assert [styles[name]["linestyle"] for name in "abcd"] == ["-", "--", "-.", ":"]


def test_the_same_figure_gives_the_same_files():
    def drawn(look):
        with matplotlib.rc_context(look.parameters):
            figure, axes = panels(3, 2, 2)
            axes[0].plot([1, 2], label="a")
            legend(figure, axes[0], 1)
        return figure

    assert len(drawn(LIGHT).axes) == 4 and sum(axes.get_visible() for axes in drawn(LIGHT).axes) == 3
    for kind, start in (("svg", b"<?xml"), ("png", b"\x89PNG")):
        assert rendered(drawn(LIGHT), LIGHT, kind) == rendered(drawn(LIGHT), LIGHT, kind)
        assert rendered(drawn(LIGHT), LIGHT, kind).startswith(start)
    assert rendered(drawn(LIGHT), LIGHT, "svg") != rendered(drawn(DARK), DARK, "svg")
