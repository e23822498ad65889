import pytest

drawings = pytest.importorskip("federec.reproduction.drawings.make", reason="pip install federec[results]")


def test_figures_are_listed_with_their_source(federec):
    lines = federec("figure").out.splitlines()
    assert [line.split()[0] for line in lines] == [*drawings.DRAWINGS]
    assert "FedRecGEL, Fig. 1 and 3" in lines[1] and all(
        each.shows in said for each, said in zip(drawings.DRAWINGS.values(), lines, strict=True)
    )


def test_a_figure_is_drawn_from_a_file(federec, ratings, tmp_path):
    options = ("--data", ratings, "--rounds", 2, "--out", tmp_path / "out", "--runs", tmp_path / "runs")
    said = federec("figure", "leak", *options)
    assert said.code == 0 and said.out.count("wrote  ") == 6 and said.err.count("train  negative-count") == 2
    assert (tmp_path / "out" / "leak.csv").read_text().startswith("protocol,round,hr@10\npaper,1,")
    again = federec("figure", "leak", *options)
    assert again.code == 0 and again.err == ""
    drawn = federec("figure", "leak", "--page-only", "--out", tmp_path / "out")
    assert drawn.code == 0 and drawn.err == "" and drawn.out.count("wrote  ") == 6


def test_a_wrong_name_is_refused(refused):
    assert "unknown figure 'radius' - did you mean 'radii'?" in refused("figure", "radius")


def test_ctrl_c_says_how_to_continue(federec, monkeypatch, tmp_path):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(drawings, "make", interrupt)
    said = federec("figure", "leak", "--runs", tmp_path, "--out", tmp_path)
    assert said.code == 130 and "run the same command to continue" in said.err


def test_the_shell_completes_names_of_figures(federec, monkeypatch):
    from federec.cli.names import FIGURES

    assert tuple(drawings.DRAWINGS) == FIGURES
    monkeypatch.setenv("_FEDEREC_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "federec figure le")
    monkeypatch.setenv("COMP_CWORD", "2")
    assert federec().out.split() == ["leak"]
