"""The bare peer of `api`: FastAPI and a psycopg pool, one statement a request, nothing else. `python -m benchmarks.bare URL PORT`."""

from __future__ import annotations

import sys
from typing import Any

import uvicorn
from fastapi import FastAPI, HTTPException
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb
from psycopg_pool import ConnectionPool
from pydantic import BaseModel

TABLE = """
create table bare_jobs (
  id bigint generated always as identity primary key, task text not null, queue text not null, status text not null
  default 'queued', payload jsonb not null, result jsonb, error text, attempt int not null default 0, max_attempts int
  not null, created_at timestamptz not null default now(), started_at timestamptz, finished_at timestamptz)
"""
POOL = 8  # connections, as many as ours


class Request(BaseModel):
    """What a client may send, as ours."""

    payload: dict[str, Any]
    task: str = "train"
    queue: str = "training"
    max_attempts: int = 1


def application(url: str) -> FastAPI:
    """The app on a pool of its own; autocommit, so that an insert is one round trip."""
    pool = ConnectionPool(
        url, min_size=POOL, max_size=POOL, kwargs={"autocommit": True, "row_factory": dict_row}, open=True
    )
    app = FastAPI()

    @app.post("/jobs", status_code=201)
    def post(body: Request) -> Any:
        with pool.connection() as connection:
            return connection.execute(
                "insert into bare_jobs (task, queue, payload, max_attempts) values (%s, %s, %s, %s) returning *",
                [body.task, body.queue, Jsonb(body.payload), body.max_attempts],
            ).fetchone()

    @app.get("/jobs/{id}")
    def get(id: int) -> Any:
        with pool.connection() as connection:
            row = connection.execute("select * from bare_jobs where id = %s", [id]).fetchone()
        if row is None:
            raise HTTPException(404)
        return row

    return app


if __name__ == "__main__":
    uvicorn.run(
        application(sys.argv[1]), host="127.0.0.1", port=int(sys.argv[2]), access_log=False, log_level="warning"
    )
