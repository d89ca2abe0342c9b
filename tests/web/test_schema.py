"""Every call as the OpenAPI document describes it, with requests made up from it: good ones are taken, bad ones refused, and
every answer is one that the document names."""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jsonschema
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis.checks import positive_data_acceptance
from schemathesis.python.asgi import shutdown_lifespans

from engine import registry
from engine.store import Store
from engine.web import access
from engine.web.app import create_app
from engine.web.settings import WebSettings
from tests.web.conftest import OPERATE

# What no schema can say: the text of a refusal of a request that the document allows.
SAID = re.compile(
    r"idempotency key .* with another body|holds a NUL character|half a character|^graph|^node |is not registered"
)
EXAMPLES = 5


@pytest.fixture
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    shutdown_lifespans()
    logging.disable(logging.NOTSET)


def test_requests_made_up_from_the_document(
    store: Store, web_settings: WebSettings, quiet: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access, "FAILURES_RATE", 0.0)  # each good answer is asked for again with a wrong token
    registry.register_workflow("nightly", {"name": "nightly", "nodes": [{"id": "a", "node": "fetch"}]})
    app = create_app(replace(web_settings, token=OPERATE), lambda: store)
    schema = schemathesis.openapi.from_asgi("/openapi.json", app, headers={"authorization": f"Bearer {OPERATE}"})

    @schema.auth()
    class Token:
        def get(self, case: Any, context: Any) -> str:
            return OPERATE

        def set(self, case: Any, token: str, context: Any) -> None:
            case.headers["Authorization"] = f"Bearer {token}"

    called = set()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for found in schema.exclude(path="/events").get_all_operations():  # an answer without end
            operation = found.ok()
            called.add(f"{operation.method.upper()} {operation.path}")
            for mode in schemathesis.GenerationMode:
                if (
                    mode is schemathesis.GenerationMode.POSITIVE or operation.path != "/healthz"
                ):  # which takes nothing that could be wrong
                    _call(operation, mode)
    assert called >= {
        "POST /jobs", "GET /jobs", "GET /jobs/{job_id}", "DELETE /jobs/{job_id}", "GET /jobs/{job_id}/events",
        "GET /jobs/{job_id}/log", "POST /runs", "GET /runs/{run_id}", "DELETE /runs/{run_id}", "GET /metrics", "GET /healthz",
    }  # fmt: skip


def _call(operation: Any, mode: Any) -> None:
    @seed(20260131)
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def check(case: Any) -> None:
        answer = case.call()
        explained = answer.status_code == 422 and SAID.search(answer.json()["detail"])
        case.validate_response(answer, excluded_checks=[positive_data_acceptance] if explained else [])

    check()


def test_the_document_names_the_contract_s_answers_and_its_examples_are_valid(web_settings: WebSettings) -> None:
    registry.register_ingest_task("resize", lambda **_: None)
    app = create_app(replace(web_settings, token=OPERATE), lambda: Store("sqlite:////nowhere/at-all_test.db"))
    document = app.openapi()
    contract = {
        ("/jobs", "post"): {"201", "200", "413", "422", "429"},
        ("/jobs", "get"): {"200", "422"},
        ("/jobs/{job_id}", "get"): {"200", "404"},
        ("/jobs/{job_id}", "delete"): {"200", "202", "404", "409"},
        ("/metrics", "get"): {"200"},
        ("/healthz", "get"): {"200", "503"},
    }
    for (path, method), statuses in contract.items():
        assert statuses <= set(document["paths"][path][method]["responses"]), path
    schemas = document["components"]["schemas"]
    wanted = schemas["JobRequest"]["properties"]
    assert wanted["task"]["enum"] == ["resize", "train"] and wanted["queue"]["enum"] == ["default", "training"]
    assert document["security"] == [{"token": []}] and document["paths"]["/healthz"]["get"]["security"] == []
    shown = 0
    for name, schema in schemas.items():
        whole = {**schema, "components": document["components"]}
        for example in schema.get("examples", ()):
            jsonschema.validate(example, whole)
            shown += 1
        assert schema.get("examples") or name == "RunNode", name
    assert shown >= 8
