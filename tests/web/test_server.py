"""The server as a process."""

from __future__ import annotations

import signal

import httpx
from starlette.testclient import TestClient

from tests.web.conftest import Service


def test_a_server_starts_answers_and_ends_in_good_order(service: Service, client: httpx.Client) -> None:
    assert client.get("/healthz").json() == {"status": "ok"}
    service.process.send_signal(signal.SIGTERM)
    assert service.process.wait(30) == 0


def test_the_app_in_this_process(app_client: TestClient) -> None:
    assert app_client.get("/healthz").status_code == 200
    answer = app_client.get("/nothing-here")
    assert answer.status_code == 404
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["request_id"] == answer.headers["x-request-id"]
