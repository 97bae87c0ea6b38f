"""Runs an MCP server on standard input and output as one that never heard of the other era.

Usage: one_era.py legacy|modern COMMAND…

A request of the other era is answered with "method not found", but no sooner than the server could have answered it:
the server is asked something harmless in its place.
"""

import json
import subprocess
import sys
import threading

MODERN_ONLY = {"server/discover", "subscriptions/listen"}
META = "io.modelcontextprotocol/"
DISCOVER = {"_meta": {META + "protocolVersion": "2026-07-28", META + "clientCapabilities": {}}}
HARMLESS = {"legacy": {"method": "ping"}, "modern": {"method": "server/discover", "params": DISCOVER}}


def foreign(era: str, message: object) -> bool:
    """Whether a message is a request of the other era."""
    if not isinstance(message, dict) or "method" not in message or "id" not in message:
        return False
    meta = (message.get("params") or {}).get("_meta") or {}
    modern = message["method"] in MODERN_ONLY or META + "protocolVersion" in meta
    return modern == (era == "legacy")


def parsed(line: bytes) -> object:
    try:
        return json.loads(line)
    except ValueError:
        return None


def main(era: str, command: list[str]) -> int:
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    refused = set()

    def answers() -> None:
        for line in child.stdout:
            message = parsed(line)
            if isinstance(message, dict) and "method" not in message and message.get("id") in refused:
                refused.discard(message["id"])
                error = {"code": -32601, "message": "Method not found"}
                line = json.dumps({"jsonrpc": "2.0", "id": message["id"], "error": error}).encode() + b"\n"
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()

    reader = threading.Thread(target=answers)
    reader.start()
    for line in sys.stdin.buffer:
        message = parsed(line)
        if foreign(era, message):
            refused.add(message["id"])
            line = json.dumps({"jsonrpc": "2.0", "id": message["id"], **HARMLESS[era]}).encode() + b"\n"
        child.stdin.write(line)
        child.stdin.flush()
    child.stdin.close()
    code = child.wait()
    reader.join()
    return code


sys.exit(main(sys.argv[1], sys.argv[2:]))
