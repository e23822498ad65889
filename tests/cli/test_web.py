import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest

from federec.web.server import page_server as real_server


@pytest.fixture
def finished(federec, tmp_path, ratings):
    said = federec("train", "fedmf", "--data", ratings, "--rounds", 2, "--set", "dim=4", "--out", tmp_path / "run")
    assert said.code == 0
    return tmp_path / "run"


def test_a_run_is_served_until_it_is_stopped(federec, finished, monkeypatch):
    made = []

    def page_server(*args):
        """A server that someone visits once, and that is then stopped by Ctrl-C."""
        real = real_server(*args)

        def visited():
            with ThreadPoolExecutor(1) as pool:
                visit = pool.submit(urllib.request.urlopen, f"http://127.0.0.1:{real.server_port}/", timeout=10)
                real.handle_request()
                made.append(visit.result().read())
            raise KeyboardInterrupt

        real.serve_forever = visited
        return real

    monkeypatch.setattr("federec.web.server.page_server", page_server)
    said = federec("web", finished, "--port", 0)
    assert said.code == 0 and said.out.startswith(f"page of {finished}: http://127.0.0.1:")
    assert said.out.endswith("press Ctrl-C to stop\nstopped\n")
    assert b"Recommendations that stay with you" in made[0]


def test_web_refuses(refused, federec, tmp_path, ratings, finished):
    assert "is not a run folder" in refused("web", tmp_path)
    assert "No such option '--prot'" in refused("web", finished, "--prot", 1)
    assert "give a number from 0 to 65535" in refused("web", finished, "--port", 99999)
    assert federec("train", "popularity", "--data", ratings, "--out", tmp_path / "popular").code == 0
    assert "a page cannot play 'popularity'; train one of pfedrec" in refused("web", tmp_path / "popular")
