"""Calls JSON-RPC endpoints over WebSocket with PyPI `websockets`, everything at once.

Usage: client.py URL…. Prints what each said, as a JSON array.
"""

import asyncio
import json
import sys

from websockets.asyncio.client import connect


async def said(url: str) -> dict:
    asked = [
        {"jsonrpc": "2.0", "id": "e", "method": "echo", "params": {"text": "süß 🚂"}},
        {"jsonrpc": "2.0", "id": 1, "method": "add", "params": [1, 2]},
        {"jsonrpc": "2.0", "id": 2, "method": "fail"},
        {"jsonrpc": "2.0", "method": "add", "params": [7, 7]},
        [
            {"jsonrpc": "2.0", "id": 3, "method": "add", "params": [3, 4]},
            {"jsonrpc": "2.0", "method": "add", "params": [8, 8]},
            {"jsonrpc": "2.0", "id": 4, "method": "fail"},
        ],
    ]
    async with connect(url) as socket:
        for one in asked:
            await socket.send(json.dumps(one))
        single, batch = {}, None
        while len(single) < 3 or batch is None:
            answer = json.loads(await socket.recv())
            if isinstance(answer, list):
                batch = {one["id"]: one for one in answer}
            else:
                single[answer["id"]] = answer
    return {
        "echo": single["e"]["result"],
        "add": single[1]["result"],
        "fail": single[2]["error"]["code"],
        "batch": [batch[3]["result"], batch[4]["error"]["code"], len(batch)],
    }


async def main() -> None:
    print(json.dumps([await said(url) for url in sys.argv[1:]]))


asyncio.run(main())
