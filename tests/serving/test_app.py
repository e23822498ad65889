import dataclasses
import json

import numpy as np
import pytest

from federec.network.catalogue import Catalogue
from federec.serving.app import EXAMPLES, Wrong, answered, make_app, parsed
from federec.serving.metrics import Metrics


def ask(model, body):
    return json.loads(answered(model, parsed(body)))


def test_the_three_kinds_of_requests(served):
    one = ask(served(), b'{"user": "u1", "k": 2}')["items"]
    assert [set(item) for item in one] == [{"item", "title", "score"}] * 2
    assert one[0]["title"] == f"Film {one[0]['item'][1:]}"
    many = ask(served(), b'{"users": ["u1", "u2"], "k": 2}')["users"]
    assert [each["user"] for each in many] == ["u1", "u2"] and many[0]["items"] == one
    assert len(ask(served(), b'{"items": ["i1"]}')["items"]) == 10


@pytest.mark.parametrize(
    ("body", "status", "why"),
    [
        (b"", 400, "not JSON"),
        (b'{"user": ', 400, "not JSON"),
        (b"\xff\xfe", 400, "not JSON"),
        (b'{"user": NaN}', 422, "user"),
        (b"[" * 100_000, 400, "not JSON"),
        (b"[]", 422, "object"),
        (b"{}", 422, "give one of user, users and items"),
        (b'{"user": "u1", "items": []}', 422, "give one of user, users and items"),
        (b'{"user": "u1", "k": 0}', 422, "k=0"),
        (b'{"user": "u1", "k": 101}', 422, "k=101"),
        (b'{"user": {"a": 1}}', 422, "user"),
        (b'{"user": true}', 422, "user"),  # which is not user 1
        (b'{"users": [1.0]}', 422, "users"),
        (b'{"items": [false]}', 422, "items"),
        (b'{"users": []}', 422, "users"),
        (b'{"items": [' + b"1," * 1000 + b"1]}", 422, "at most 1000"),
        (b'{"item": ["i1"]}', 422, "item="),
        (b'{"user": "eve"}', 404, "no user is called 'eve'"),
        (b'{"users": ["u1", "eve"]}', 404, "no user is called 'eve'"),
        (b'{"items": ["i1", "' + b"x" * 3000 + b'"]}', 404, "no item is called 'xxx"),
    ],
)
def test_what_is_wrong_is_one_line(served, body, status, why):
    with pytest.raises(Wrong) as wrong:
        ask(served(), body)
    assert wrong.value.status == status and why in wrong.value.why
    assert "\n" not in wrong.value.why and len(wrong.value.why) < 300


@pytest.mark.parametrize("k", [4, 20])  # written at the start, and for the request
def test_scores_that_are_no_numbers_are_left_out(served, k):
    model = served()
    scores = model.scores.copy()
    scores[model.rows["u1"], :4] = 2.0, np.inf, np.nan, 1.0
    found = ask(dataclasses.replace(model, scores=scores), b'{"user": "u1", "k": %d}' % k)["items"]
    assert [item["score"] for item in found[:2]] == [2.0, 1.0] and len(found) == k


def test_long_lists_begin_as_short_ones_do(served):
    for user in ("u0", "u7"):
        asked = b'{"user": "%b", "k": %d}'
        long = ask(served(), asked % (user.encode(), 100))["items"]
        assert len(long) > 10
        for k in (1, 9, 10, 11):
            assert ask(served(), asked % (user.encode(), k))["items"] == long[:k]


def test_text_of_the_data_stays_as_it_is(served):
    model = served()
    labels = tuple(f'{label} "é\\' for label in model.catalogue.labels)
    catalogue = Catalogue(labels, {labels[3]: "Amélie\u2028"})
    odd = dataclasses.replace(model, catalogue=catalogue, rows={'"ü': 1})
    (found,) = ask(odd, json.dumps({"users": ['"ü'], "k": 30}).encode())["users"]
    codes, scores = model.of_user("u1", 30)
    assert found["user"] == '"ü' and [item["item"] for item in found["items"]] == [labels[code] for code in codes]
    assert {item["title"] for item in found["items"] if item["item"] == labels[3]} <= {"Amélie\u2028"}
    assert [item["score"] for item in found["items"]] == pytest.approx(scores.tolist(), abs=1e-6)


def test_a_federation_only_serves_anonymous_lists(served):
    model = dataclasses.replace(served(), rows={})
    with pytest.raises(Wrong) as wrong:
        ask(model, b'{"user": "u1"}')
    assert wrong.value.status == 404 and "anonymous list" in wrong.value.why
    assert ask(model, b'{"items": ["i1"], "k": 1}')["items"]


def test_a_method_without_strangers_says_so(served):
    with pytest.raises(Wrong) as wrong:
        ask(served("local-only"), b'{"items": ["i1"]}')
    assert wrong.value.status == 422 and "somebody new" in wrong.value.why


def test_the_description_has_examples_that_work(served):
    described = make_app(served(), Metrics()).openapi()
    asked = described["paths"]["/recommend"]["post"]
    examples = asked["requestBody"]["content"]["application/json"]["examples"]
    assert examples == EXAMPLES and set(asked["responses"]) >= {"200", "400", "404", "408", "413", "422"}
    for example in examples.values():
        parsed(str(example["value"]).replace("'", '"').encode())
    assert {"/health", "/metrics"} < set(described["paths"])


def test_processes_count_together():
    metrics = Metrics(workers=2)
    metrics.add("user", 200, 0.0005)
    metrics.worker = 1
    metrics.add("items", 200, 0.003)
    metrics.add("refused", 404, 9.0)
    text = metrics.text(items=5, users=2)
    assert 'federec_serve_requests_total{kind="user",status="200"} 1\n' in text
    assert 'federec_serve_request_seconds_bucket{le="0.005"} 2\n' in text
    assert 'federec_serve_request_seconds_bucket{le="+Inf"} 3\n' in text
    assert "federec_serve_request_seconds_count 3\n" in text and "federec_serve_items 5\n" in text
