"""The server: an OpenAI-compatible HTTP interface to one engine.

The event loop never touches the engine, and the engine never waits for a socket: requests reach it through
:class:`outrider.engine.driver.Driver`, and answers come back through queues.
"""
