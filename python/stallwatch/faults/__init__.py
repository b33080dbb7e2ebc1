"""A provider that misbehaves on purpose, on loopback, for tests and demos.

It speaks enough of OpenAI chat completions, OpenAI responses and Anthropic messages for the real
SDKs, and stalls, pings, drips, cuts or breaks at the event you name:

    async with FaultServer() as server:
        server.play(Scenario(fault=Fault.SILENCE, at=3))
        client = openai.AsyncOpenAI(base_url=server.openai_url, api_key="any")

Serving needs `pip install stallwatch[faults]`; describing scenarios does not.
"""

from ._record import RequestRecord
from ._scenario import Fault, Scenario
from ._server import FaultServer

__all__ = ["Fault", "FaultServer", "RequestRecord", "Scenario"]

for _public in (Fault, FaultServer, RequestRecord, Scenario):
    _public.__module__ = __name__
del _public
