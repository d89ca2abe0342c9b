"""Databases: connections, the two dialects, wakes, session locks, migrations."""

from engine.store.connect import Store, adopt, open_store
from engine.store.db import Db, Row
from engine.store.dialect import Json
from engine.store.wakes import Wake, Wakes, WakeState

__all__ = ["Db", "Json", "Row", "Store", "Wake", "WakeState", "Wakes", "adopt", "open_store"]
