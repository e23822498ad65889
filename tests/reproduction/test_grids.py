import pytest

from federec.data.sets import SETS
from federec.errors import UserError
from federec.reproduction.cells import Cell
from federec.reproduction.grids import GRIDS, grid


@pytest.mark.parametrize("chosen", GRIDS.values(), ids=GRIDS)
def test_every_row_of_every_grid_can_be_configured(chosen):
    labels = [row.label for row in chosen.rows]
    assert len(set(labels)) == len(labels)
    assert set(chosen.data) <= set(SETS)
    for first, second in chosen.claims:
        assert first in labels and second in labels
    for row in chosen.rows:
        for protocol in ("clean", "paper"):
            config = Cell(row, chosen.data[0], protocol, 0).config()
            assert config.method == row.method and config.plugins == row.plugins
            assert {key: config.settings[key] for key in row.settings} == row.settings


def test_an_unknown_table_gets_a_hint():
    with pytest.raises(UserError, match="did you mean 'pfedrec-table2'"):
        grid("pfedrec-tabel2")
