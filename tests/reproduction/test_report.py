from tests.reporting.reader import Reader

import federec as fr
from federec.reproduction.report import comparison_report


def test_runs_are_compared_in_one_page(tmp_path, random_split):
    data = random_split().data
    for name, seed in (("fedmf", 0), ("fedmf", 1), ("popularity", 0)):
        fr.train(name, data, rounds=2 if name == "fedmf" else None, seed=seed, out=tmp_path / f"{name}{seed}")
    folders = sorted(path for path in tmp_path.iterdir())
    read = Reader(comparison_report(folders, folders[-1], "sampled.hr@10"))
    assert "Comparison of 3 runs" in read.text and "protocol clean" in read.text
    assert [row[1] for row in read.rows if row[0] == "popularity"] == ["baseline"]
    (fedmf,) = (row for row in read.rows if row[0] == "fedmf")
    assert fedmf[3] == "2" and "(common seeds: 1)" in fedmf[2] and fedmf[2].startswith(("+", "-"))
    assert "difference in sampled.hr@10" in read.rows[0]
    assert [g["data-name"] for g in read.attributes("g")[:3]] == ["fedmf, seed 0", "fedmf, seed 1", "popularity"]
    twice = Reader(comparison_report([folders[0], folders[0]]))
    assert "Comparison of 1 runs" not in twice.text and "Comparison of 1 run" in twice.text
