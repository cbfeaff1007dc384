"""What every engine's process does: answer requests on standard input, a JSON object a line, until it closes.

Request ``{"arm", "token_ids", "text", "max_tokens"}``; answer ``{"token_ids" or "text", "tokens", "prefill_s",
"decode_s"}`` or ``{"error"}``.  The first line out tells the version, how it was built, and the arms.
"""

import contextlib
import json
import os
import sys


def serve(version, build, arms):
    """Answer until standard input closes.

    Args:
        version: of the engine.
        build: what its binaries were built for and use of this CPU, in the engine's own words.
        arms: by name, a function from a request to an answer.
    """
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # engines print to standard output what does not belong there
    _say(out, {"version": version, "build": build, "arms": sorted(arms)})
    for line in sys.stdin:
        request = json.loads(line)
        try:
            with contextlib.redirect_stdout(sys.stderr):
                answer = arms[request["arm"]](request)
        except Exception as error:  # noqa: BLE001 - an arm that fails is a result
            answer = {"error": f"{type(error).__name__}: {error}"}
        _say(out, answer)


def _say(out, value):
    out.write(json.dumps(value) + "\n")
    out.flush()
