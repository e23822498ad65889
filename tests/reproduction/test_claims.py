import pytest

from federec.reproduction.claims import decide, listed


def test_only_runs_of_the_same_seed_are_paired(finished):
    found = {("a", "set", "tuned"): finished(seeds=(0, 1, 2)), ("b", "set", "tuned"): finished(seeds=(2,))}
    found["c", "set", "tuned"] = finished(seeds=(7,))
    claims = decide([("a", "b", "set"), ("a", "c", "set")], found)
    assert list(claims) == [("a", "b", "set")]  # no seed in common with c
    claim = claims["a", "b", "set"]
    assert claim.seeds == 1 and claim.difference == (0, 0, 0)  # the same runs; seed 0 against seed 2 would differ


def test_all_comparisons_are_corrected_together(finished):
    """The same difference is significant by itself and not among many."""
    found = {("a", "set", "tuned"): finished(1, users=30), ("b", "set", "tuned"): finished(users=30)}
    alone = decide([("a", "b", "set")], found)["a", "b", "set"]
    assert alone.verdict == "better"
    found |= {(f"{number}", "set", "tuned"): finished(users=30) for number in range(20)}
    asked = [("a", "b", "set"), *((f"{number}", "b", "set") for number in range(20))]
    among = decide(asked, found)["a", "b", "set"]
    assert among.p == pytest.approx(21 * alone.p) and among.verdict == "no clear difference"
    few = {(f"{number}", "set", "tuned"): finished(users=30, seeds=(0, 1)) for number in range(20)}
    kept = decide(asked, found | few)  # too few seeds for a claim: they do not count
    assert kept["a", "b", "set"].p == pytest.approx(alone.p) and kept["7", "b", "set"].verdict == "no claim"


def test_a_claim_can_be_read_the_other_way_round(finished):
    found = {(label, "set", "tuned"): finished(places) for label, places in (("a", 6), ("b", 0))}
    claims = decide([("a", "b", "set"), ("b", "a", "set")], found)
    one, other = claims["a", "b", "set"].turned, claims["b", "a", "set"]
    assert one.verdict == other.verdict == "worse"
    assert one.difference == pytest.approx(other.difference) and one.sampled == pytest.approx(other.sampled)


def test_tuned_cells_count_before_clean_ones(finished):
    found = {(label, "set", "clean"): finished(places) for label, places in (("a", 6), ("b", 0))}
    assert decide([("a", "b", "set")], found)["a", "b", "set"].kind == "clean"
    assert decide([("a", "b", "set")], found, ["tuned"]) == {}
    found |= {(label, "set", "tuned"): finished(places) for label, places in (("a", 0), ("b", 6))}
    claim = decide([("a", "b", "set")], found)["a", "b", "set"]
    assert (claim.kind, claim.verdict) == ("tuned", "worse")


def test_words_are_listed_as_in_a_sentence():
    assert [listed(words) for words in ([], ["a"], ["a", "b"], ["a", "b", "c"])] == ["", "a", "a and b", "a, b and c"]
