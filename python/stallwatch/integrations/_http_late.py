"""How a cause gets through an SDK that retries whatever its client raises.

The SDKs of OpenAI and Anthropic send a request and read an answer that is not streamed in one
step, take every exception of that step for a broken connection, and try again. What comes after
it, the look at the status, is outside that step: an exception raised there is the caller's, as
the same object and at once. So an answer that was cut before the SDK has looked is handed over as
a response that raises its cause when it is looked at.
"""

from __future__ import annotations

import functools
import sys
from typing import Any, Final

from stallwatch._causes import StallError

__all__ = ["is_of_sdk", "refusal", "wrap"]

_MARK: Final = "x-stainless-"
"""Both SDKs, and others made by the same generator, name themselves in headers like this."""

_GATEWAY_TIMEOUT: Final = 504
_HEADERS: Final = (("x-should-retry", "false"),)
"""For one that looks at the status alone."""


def is_of_sdk(request: Any) -> bool:
    """Whether a request comes from an SDK that retries what its client raises."""
    return any(name.startswith(_MARK) for name in request.headers)


def wrap(response: Any, stream: Any) -> Any:
    """The same response, with this byte stream, and holding back what cuts it until looked at."""
    kind: Any = type(response)
    return _class_of(kind)(
        response.status_code,
        headers=response.headers,
        stream=stream,
        extensions=response.extensions,
    )


def refusal(library: str, cause: StallError) -> Any:
    """A response without an answer, which raises `cause` when it is looked at."""
    made = _class_of(sys.modules[library].Response)(_GATEWAY_TIMEOUT, headers=_HEADERS, content=b"")
    made._cause = cause
    return made


class _Late:
    """Mixed into the client's own class of responses."""

    _cause: StallError | None = None
    _seen = False

    async def aread(self) -> Any:
        """As ever; but a cut is kept until the response is looked at."""
        if self._seen:
            return await super().aread()  # type: ignore[misc]
        try:
            return await super().aread()  # type: ignore[misc]
        except StallError as cause:
            self._cause = cause
        await self.aclose()  # type: ignore[attr-defined]
        return b""

    def read(self) -> Any:
        """As ever; but a cut is kept until the response is looked at."""
        if self._seen:
            return super().read()  # type: ignore[misc]
        try:
            return super().read()  # type: ignore[misc]
        except StallError as cause:
            self._cause = cause
        self.close()  # type: ignore[attr-defined]
        return b""

    def _look(self) -> None:
        self._seen = True
        if self._cause is not None:
            raise self._cause

    def raise_for_status(self) -> Any:
        """As ever, and raises what has cut it."""
        self._look()
        return super().raise_for_status()  # type: ignore[misc]

    @property
    def is_success(self) -> bool:
        """As ever, and raises what has cut it."""
        self._look()
        return bool(super().is_success)  # type: ignore[misc]

    @property
    def content(self) -> bytes:
        """As ever, and raises what has cut it."""
        if self._cause is not None:
            raise self._cause
        return bytes(super().content)  # type: ignore[misc]


@functools.cache
def _class_of(kind: Any) -> Any:
    return type(kind.__name__, (_Late, kind), {"__module__": __name__})
