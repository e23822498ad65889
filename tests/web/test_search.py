from tests.web.node import needs_node, node

TITLES = ["Élan vital", "The elan", "Vital signs", "Signs of élan", "Noir"]
FOUND = {"ELAN": [0, 1, 3], "signs élan": [3], "vital": [2, 0], "  ": [], "nothing": [], "(.*": []}


@needs_node
def test_all_words_must_fit_whatever_their_case_and_accents():
    body = "const search_ = search.searcher(titles); return queries.map(search_);"
    assert node(["search"], body, titles=TITLES, queries=[*FOUND]) == [*FOUND.values()]
