import pytest

from federec.data.sets import SETS
from federec.errors import UserError
from federec.reproduction.cells import Cell
from federec.reproduction.grids import GRIDS, grid
from federec.reproduction.pages import published


@pytest.mark.parametrize("chosen", GRIDS.values(), ids=GRIDS)
def test_every_row_of_every_grid_can_be_configured(chosen):
    labels = [row.label for row in chosen.rows]
    assert len(set(labels)) == len(labels)
    assert set(chosen.data) <= set(SETS)
    for first, second in chosen.claims:
        assert first in labels and second in labels
    for row in chosen.rows:
        for kind in chosen.kinds:
            config = Cell(row, chosen.data[0], kind, 0).config()
            assert config.method == row.method and config.plugins == row.plugins
            assert {key: config.settings[key] for key in row.settings} == row.settings


@pytest.mark.parametrize("chosen", GRIDS.values(), ids=GRIDS)
def test_every_published_figure_has_a_place_on_its_page(chosen):
    labels, figures = {row.label for row in chosen.rows}, published(chosen.name)
    assert {(label, data) for label, data, _ in figures} <= {(label, data) for label in labels for data in chosen.data}
    assert set(chosen.tried) <= {row.label for grid in GRIDS.values() for row in grid.rows}


def test_lastfm_is_compared_with_what_was_published_there():
    """PFedRec counts tag assignments: its figures belong to the set that keeps repeated pairs."""
    figures = published("pfedrec-table2") | published("pfedrec-table3") | published("pfedrec-table4")
    assert {data for _, data, _ in figures} == {"ml-100k", "ml-1m", "lastfm-2k-tags", "amazon-video"}


def test_an_unknown_table_gets_a_hint():
    with pytest.raises(UserError, match="did you mean 'pfedrec-table2'"):
        grid("pfedrec-tabel2")
