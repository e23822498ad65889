import pytest

import federec as fr


@pytest.fixture(scope="session")
def exported_run(tmp_path_factory, random_split, small):
    """The folder of a small finished run of a method, and the run."""
    data, made = random_split(users=20, items=40).data, {}

    def make(name):
        if name not in made:
            folder = tmp_path_factory.mktemp("runs") / name
            with pytest.MonkeyPatch.context() as patch:
                patch.chdir(folder.parent)
                rows = zip(data.users, data.items, data.times, strict=True)
                lines = ["user,item,timestamp", *(f"u{user},i{item},{int(time)}" for user, item, time in rows)]
                (folder.parent / "ratings.csv").write_text("\n".join(lines) + "\n")
                source = str(folder.parent / "ratings.csv")
                made[name] = folder, fr.train(small(name), source, rounds=2, out=folder, progress=False)
        return made[name]

    return make
