import pytest

import federec as fr
from federec.serving.model import Served


@pytest.fixture(scope="session")
def served_run(tmp_path_factory, random_split, small):
    """The folder of a small run, and the run; its items have titles."""
    folder = tmp_path_factory.mktemp("served")
    data = random_split(users=20, items=40).data
    rows = zip(data.users, data.items, data.times, strict=True)
    lines = ["user,item,timestamp", *(f"u{user},i{item},{int(time)}" for user, item, time in rows)]
    (folder / "ratings.csv").write_text("\n".join(lines) + "\n")
    (folder / "titles.csv").write_text("item,title\n" + "".join(f"i{item},Film {item}\n" for item in range(40)))

    def make(name):
        path = folder / name
        if not path.exists():
            source = fr.load(folder / "ratings.csv", titles=folder / "titles.csv")
            fr.train(small(name), source, rounds=2, out=path, progress=False)
        return path

    return make


@pytest.fixture(scope="session")
def served(served_run):
    """The model of such a run, ready to answer."""
    made = {}

    def make(name="fedmf"):
        if name not in made:
            made[name] = Served.load(served_run(name))
        return made[name]

    return make
