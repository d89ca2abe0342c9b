"""Statements that one PostgreSQL connection runs many hundred times a second, past the driver's work per call.

The driver looks at every call as if it were the first: it adapts each parameter by its Python type, keys its cache by
statement and types, makes a cursor. For a claim with a dozen parameters that is some 0.3 ms, more than half of what a
lane spends on a job. Here a statement is prepared once, with types that the server infers, and its parameters are written
as text. Sending, waiting (with the connection's deadline), errors and the values of rows stay the driver's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import psycopg
from psycopg import generators
from psycopg.adapt import Transformer
from psycopg.errors import error_from_result
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGresult

Row = dict[str, Any]


class HotStatements:
    """The prepared statements of one autocommit connection. For one thread at a time.

    They are kept for as long as the connection lives: their texts must be few.
    """

    def __init__(self, raw: psycopg.Connection[Any]) -> None:
        self._raw = raw
        self._names: dict[str, bytes] = {}
        self._columns: dict[bytes, list[str]] = {}
        self._values = Transformer(raw)

    def all(self, text: str, values: Iterable[Any]) -> list[Row]:
        """All rows of ``text`` with $1, $2, ... = ``values``: None, bool, int, float, str and lists of these.

        Raises psycopg.Error, TypeError for a value of another type.
        """
        given = [_FORMS[type(value)](value) for value in values]
        name = self._names.get(text) or self._prepare(text)
        self._raw.pgconn.send_query_prepared(name, given)
        result = self._answer()
        count = result.ntuples
        if not count:
            return []
        columns = self._columns.get(name)
        if columns is None:
            columns = self._columns[name] = [(result.fname(i) or b"").decode() for i in range(result.nfields)]
        self._values.set_pgresult(result)
        return self._values.load_rows(0, count, lambda row: dict(zip(columns, row, strict=True)))

    def _prepare(self, text: str) -> bytes:
        name = f"hot_{len(self._names)}".encode()
        self._raw.pgconn.send_prepare(name, text.encode())
        self._answer()
        self._names[text] = name
        return name

    def _answer(self) -> PGresult:
        result: PGresult = self._raw.wait(generators.execute(self._raw.pgconn))[-1]
        if result.status not in (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK):
            raise error_from_result(result, encoding=self._raw.info.encoding)
        return result


def _text(value: str) -> bytes:
    if "\0" in value:
        raise psycopg.DataError("PostgreSQL text fields cannot contain NUL (0x00) bytes")
    return value.encode()


def _array(values: list[Any]) -> bytes:
    return b"{%b}" % b",".join([_ELEMENTS[type(value)](value) for value in values])


class _Forms(dict[type, Callable[[Any], Any]]):
    """How values of a type are written in the server's text form; a subclass is written as its base."""

    def __missing__(self, kind: type) -> Callable[[Any], Any]:
        for base in kind.__mro__:
            if base in self:
                return self[base]
        raise TypeError(f"a {kind.__name__} has no text form here")


_FORMS = _Forms(
    {
        type(None): lambda value: None,
        bool: lambda value: b"t" if value else b"f",
        int: lambda value: b"%d" % value,
        float: lambda value: repr(value).encode(),
        str: _text,
        list: _array,
    }
)
_ELEMENTS = _Forms(
    {
        **_FORMS,
        type(None): lambda value: b"NULL",
        str: lambda value: b'"%b"' % _text(value).replace(b"\\", b"\\\\").replace(b'"', b'\\"'),
    }
)
del _ELEMENTS[list]
