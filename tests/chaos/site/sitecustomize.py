"""Imported by every process of a chaos run before anything else: a wall clock that is wrong, a planted bug.

``CHAOS_SKEW_S`` seconds are added to whatever this interpreter takes for the time of day; the monotonic clock, which
never knew it, stays. ``CHAOS_PLANT`` names a bug of ``tests.chaos.plant``.
"""

import os

_skew = float(os.environ.get("CHAOS_SKEW_S") or 0)
if _skew:
    import datetime
    import time

    _time, _time_ns, _gmtime, _localtime = time.time, time.time_ns, time.gmtime, time.localtime
    _real = datetime.datetime
    _shift = datetime.timedelta(seconds=_skew)

    class _Meta(type(_real)):
        def __instancecheck__(cls, value):
            return isinstance(value, _real)

        def __subclasscheck__(cls, other):
            return issubclass(other, _real)

    class _Skewed(_real, metaclass=_Meta):
        @classmethod
        def now(cls, tz=None):
            return _real.now(tz) + _shift

        @classmethod
        def utcnow(cls):
            return _real.utcnow() + _shift

        @classmethod
        def today(cls):
            return _real.now() + _shift

    _Skewed.__name__ = _Skewed.__qualname__ = "datetime"
    _Skewed.__module__ = "datetime"
    datetime.datetime = _Skewed
    time.time = lambda: _time() + _skew
    time.time_ns = lambda: _time_ns() + int(_skew * 1e9)
    time.gmtime = lambda at=None: _gmtime(time.time() if at is None else at)
    time.localtime = lambda at=None: _localtime(time.time() if at is None else at)

if os.environ.get("CHAOS_PLANT"):
    from tests.chaos.plant import plant

    plant(os.environ["CHAOS_PLANT"])
