"""References in the inputs of a graph."""

from __future__ import annotations

import pytest

from engine.dag import refs

CONTEXT = {"key": 7, "deep": {"list": [1, {"x": None}]}, "a.b": "dotted"}
OUTPUTS = {"fetch": {"rows": [10, 20], "none": None}, "nothing": None}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"$from": "fetch.rows"}, [10, 20]),
        ({"$from": "fetch.rows.1"}, 20),
        ({"$from": "fetch"}, OUTPUTS["fetch"]),
        ({"$from": "fetch.none"}, None),
        ({"$from": "nothing"}, None),
        ({"$context": "key"}, 7),
        ({"$context": "deep.list.1.x"}, None),
        ({"$context": "a.b"}, "dotted"),
        ({"$context": "absent", "$default": 3}, 3),
        ({"$from": "skipped.rows", "$default": {"$context": "key"}}, 7),
        ({"$from": "fetch.rows.2", "$default": None}, None),
        ({"$default": 1}, {"$default": 1}),
        ([{"a": ({"$context": "key"}, "text")}], [{"a": [7, "text"]}]),
        ({"plain": True, "n": 1.5}, {"plain": True, "n": 1.5}),
    ],
)
def test_resolves(value: object, expected: object) -> None:
    assert refs.resolve(value, CONTEXT, OUTPUTS) == expected


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"$from": "skipped"}, "was skipped"),
        ({"$from": "fetch.absent.x"}, "the output of node 'fetch' has no 'absent'"),
        ({"$from": "fetch.rows.2"}, "has no 'rows.2'"),
        ({"$from": "fetch.rows.-1"}, "has no 'rows.-1'"),
        ({"$from": "nothing.x"}, "has no 'x'"),
        ({"$context": "absent"}, "the context has no 'absent'"),
        ({"$context": "absent", "$default": {"$context": "also"}}, "'also'"),
    ],
)
def test_what_cannot_be_resolved_says_why(value: object, reason: str) -> None:
    with pytest.raises(refs.Unresolved, match=r"cannot be resolved") as caught:
        refs.resolve([value], CONTEXT, OUTPUTS)
    assert reason in str(caught.value)


def test_references_inside_data_are_not_followed() -> None:
    outputs = {"evil": {"x": {"$context": "secret"}}}
    assert refs.resolve({"$from": "evil.x"}, {"secret": 1}, outputs) == {"$context": "secret"}


@pytest.mark.parametrize(
    "value",
    [
        {"$from": "a", "$context": "b"},
        {"$from": "a", "other": 1},
        {"$from": ""},
        {"$from": 3},
        {"$from": "a..b"},
        {"$from": "a."},
        {"$from": "not an id.x"},
        {"$context": None},
        {"$from": "a", "$default": {"$from": 1}},
    ],
)
def test_wrong_shapes_are_refused(value: object) -> None:
    with pytest.raises(refs.BadReference):
        list(refs.refs_in({"x": [value]}))


def test_lists_every_reference() -> None:
    value = {"a": [{"$from": "n.x", "$default": {"$from": "m"}}, ({"$context": "k"},)], "b": 1}
    assert [ref.node for ref in refs.refs_in(value)] == ["n", "m", None]


def test_nesting_is_bounded() -> None:
    value: object = 1
    for _ in range(100):
        value = [value]
    with pytest.raises(refs.BadReference, match="nested"):
        list(refs.refs_in(value))


@pytest.mark.parametrize(
    ("skip_if", "expected"),
    [
        ({"$eq": [{"$context": "key"}, 7]}, True),
        ({"$eq": [{"$context": "key"}, 8]}, False),
        ({"$ne": [{"$from": "fetch.rows"}, []]}, True),
        ({"$ne": [1, 1.0]}, False),
        ({"$eq": [1, True]}, False),
        ({"$eq": [True, True]}, True),
        ({"$eq": [None, False]}, False),
        ({"$eq": [{"a": (1,)}, {"a": [1]}]}, True),
        ({"$eq": [{"a": 1}, {"a": True}]}, False),
        ({"$eq": [[1], [1, 2]]}, False),
    ],
)
def test_skip_if(skip_if: dict[str, object], expected: bool) -> None:
    refs.check_skip_if(skip_if)
    assert refs.skips(skip_if, CONTEXT, OUTPUTS) is expected


@pytest.mark.parametrize(
    "value", [None, True, {}, {"$eq": [1, 2], "$ne": [1, 2]}, {"$gt": [1, 2]}, {"$eq": [1]}, {"$eq": "ab"}]
)
def test_skip_if_of_another_shape_is_refused(value: object) -> None:
    with pytest.raises(refs.BadReference):
        refs.check_skip_if(value)
