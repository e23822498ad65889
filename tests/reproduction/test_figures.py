"""Plots of pages in both themes."""

import pytest

figures = pytest.importorskip("federec.reproduction.figures", reason="pip install federec[results]")


def test_a_plot_has_the_paper_and_the_ink_of_its_page():
    plot, axes = figures.pyplot.subplots()
    axes.plot([1, 2], color="#0969da")
    axes.grid()
    head, style, drawn = figures.svg(plot).partition("@media (prefers-color-scheme: dark)")
    assert style and "--paper: #ffffff" in head
    fixed = [colour for colour in ("#ffffff", "#000000", "#b0b0b0") if colour in drawn]
    assert not fixed and "var(--paper)" in drawn and "var(--ink)" in drawn and "#0969da" in drawn
