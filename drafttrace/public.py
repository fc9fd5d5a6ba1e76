"""What every public function does before and after its work: arguments are of the types that its signature names, and what
an error advises is said in Python's words."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from drafttrace.arguments import refuse_other_types
from drafttrace.python_words import in_python
from drafttrace.tracer.errors import DrafttraceError

_P = ParamSpec("_P")
_T = TypeVar("_T")


def public(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """``function``, whose wrong arguments and options of the command line in errors are named as parameters.

    A missing or an unknown argument stays Python's own TypeError.
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    def called(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        refuse_other_types(signature, signature.bind(*args, **kwargs).arguments)
        try:
            return function(*args, **kwargs)
        except DrafttraceError as error:
            error.args = (in_python(str(error), signature), *error.args[1:])
            raise

    return called
