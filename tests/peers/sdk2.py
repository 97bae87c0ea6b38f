"""Lists the tools of an MCP endpoint and calls some, with the Python SDK 2.x.

Usage: sdk2.py URL CALLS, CALLS a JSON array of [tool, arguments]. Prints one JSON object.
"""

import asyncio
import json
import sys

from mcp import Client


async def main(url: str, calls: list) -> None:
    progress = []

    async def on_progress(done: float, total: float | None, message: str | None) -> None:
        progress.append(done)

    async with Client(url) as client:
        tools, cursor = [], None
        while True:
            page = await client.list_tools(cursor=cursor)
            tools += [tool.name for tool in page.tools]
            cursor = page.next_cursor
            if cursor is None:
                break
        results = []
        for name, arguments in calls:
            result = await client.call_tool(name, arguments, progress_callback=on_progress)
            results.append(result.model_dump(mode="json", by_alias=True, exclude_none=True))
        revision = client.protocol_version
    print(json.dumps({
        "revision": revision, "tools": tools, "results": results, "progress": len(progress),
    }))


asyncio.run(main(sys.argv[1], json.loads(sys.argv[2])))
