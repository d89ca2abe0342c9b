"""The operator's page at ``/``: drawn on the server, whole without JavaScript, refreshed by server-sent events with it."""

from __future__ import annotations

from fastapi import APIRouter

from engine.web.page.forms import router as forms_router
from engine.web.page.login import router as login_router
from engine.web.page.views import router as views_router

router = APIRouter()
for _part in (login_router, forms_router, views_router):  # the last one takes every other path below /page
    router.include_router(_part)
