"""Stands in for pytest inside task images: parametrize, raises, approx and what their users touch, without its import time."""

import contextlib
import math
import re
import warnings


class Skipped(Exception):
    pass


class _Mark:
    def parametrize(self, names, values, ids=None, **_):
        names = [n.strip() for n in names.split(",")] if isinstance(names, str) else list(names)

        def mark(function):
            cases = []
            for value in values:
                value = value.values if isinstance(value, param) else (value if len(names) > 1 else (value,))
                cases.append(dict(zip(names, value)))
            function.cases = [{**a, **b} for a in getattr(function, "cases", [{}]) for b in cases]
            return function

        return mark

    def __getattr__(self, name):
        """Any other mark makes its test one that is not run here."""

        def mark(*args, **kwargs):
            def inner(function):
                function.unsupported = name
                return function

            return inner

        return mark


mark = _Mark()


class param:
    def __init__(self, *values, marks=(), id=None):
        self.values = values


class _Raised:
    value = None

    def match(self, pattern):
        assert re.search(pattern, str(self.value)), (pattern, str(self.value))
        return True


@contextlib.contextmanager
def _raises(expected, pattern):
    info = _Raised()
    try:
        yield info
    except expected as error:
        info.value, info.type = error, type(error)
        if pattern is not None:
            info.match(pattern)
    else:
        raise AssertionError(f"did not raise {expected}")


def raises(expected, function=None, *args, match=None, **kwargs):
    if function is None:
        return _raises(expected, match)
    with _raises(expected, match) as info:
        function(*args, **kwargs)
    return info


@contextlib.contextmanager
def warns(expected=Warning, match=None):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        yield seen
    hits = [w for w in seen if issubclass(w.category, expected)]
    assert any(match is None or re.search(match, str(w.message)) for w in hits), f"did not warn {expected}"


def deprecated_call():
    return warns((DeprecationWarning, PendingDeprecationWarning))


class approx:
    def __init__(self, expected, rel=1e-6, abs=1e-12):
        self.expected, self.rel, self.abs = expected, rel or 1e-6, abs or 1e-12

    def __eq__(self, actual):
        if isinstance(self.expected, (list, tuple)):
            return len(actual) == len(self.expected) and all(a == approx(e, self.rel, self.abs) for a, e in zip(actual, self.expected))
        return math.fabs(actual - self.expected) <= max(self.abs, self.rel * math.fabs(self.expected))


def skip(reason=""):
    raise Skipped(reason)


def fail(reason=""):
    raise AssertionError(reason)


def fixture(*args, **kwargs):
    return args[0] if args and callable(args[0]) else lambda function: function


def register_assert_rewrite(*names):
    pass
