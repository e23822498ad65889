import subprocess
import sys

import pytest


@pytest.fixture
def runs(federec, tmp_path, ratings):
    for name in ("popularity", "ease"):
        assert federec("train", name, "--data", ratings, "--out", tmp_path / name, "-q").code == 0
    return tmp_path / "popularity", tmp_path / "ease"


def test_one_run_has_its_report_written_again(federec, runs):
    page = runs[0] / "report.html"
    before = page.read_text()
    page.unlink()
    assert federec("report", runs[0]).out == f"report {page}\n"
    assert page.read_text() == before
    assert federec("report", runs[0], "-o", runs[0] / "other.html").code == 0
    assert (runs[0] / "other.html").read_text() == before


@pytest.mark.thorough
@pytest.mark.parametrize("command", ["report", "compare"])
def test_who_only_reads_a_run_does_not_wait_for_torch(runs, command):
    code = f"import sys; from federec.cli.main import app; app(['{command}', sys.argv[1]], standalone_mode=False)"
    code += "; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code, runs[0]], timeout=60).returncode == 0


def test_several_runs_share_a_page(federec, runs, tmp_path, monkeypatch, ratings):
    said = federec("report", *runs, ratings, "-o", tmp_path / "all.html", "--baseline", runs[1])
    assert (said.code, said.out, said.err) == (0, f"report {tmp_path / 'all.html'}\n", "")
    assert "Comparison of 2 runs" in (tmp_path / "all.html").read_text()
    monkeypatch.chdir(tmp_path)
    assert federec("report", *runs, "--metric", "sampled.hr@10").out == "report compare.html\n"
    assert "difference in sampled.hr@10" in (tmp_path / "compare.html").read_text()


def test_wrong_paths_are_one_line(refused, federec, runs, tmp_path, ratings):
    assert "is not a run folder" in refused("report", tmp_path / "gone")
    assert "no finished run among these" in refused("report", ratings)
    assert "is a folder; name a file" in refused("report", *runs, "-o", tmp_path)
    assert "cannot be written" in refused("report", *runs, "-o", tmp_path / "gone" / "all.html")
    assert "no compared run is" in refused("report", *runs, "--baseline", tmp_path / "gone")
    assert "unknown metric" in refused("report", *runs, "--metric", "ndgc")
    (runs[0] / "result.json").write_text("{")
    assert "is damaged" in refused("report", runs[0])
