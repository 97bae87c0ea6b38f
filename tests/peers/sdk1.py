"""Lists the tools of an MCP endpoint and calls some, with the Python SDK 1.x.

Usage: sdk1.py URL CALLS, CALLS a JSON array of [tool, arguments]. Prints one JSON object.
"""

import asyncio
import json
import sys

from mcp import ClientSession
from mcp.client.streamable_http import streamablehttp_client


async def main(url: str, calls: list) -> None:
    progress = []

    async def on_progress(done: float, total: float | None, message: str | None) -> None:
        progress.append(done)

    async with streamablehttp_client(url) as (read, write, _), ClientSession(read, write) as session:
        hello = await session.initialize()
        tools, cursor = [], None
        while True:
            page = await session.list_tools(cursor)
            tools += [tool.name for tool in page.tools]
            cursor = page.nextCursor
            if cursor is None:
                break
        results = []
        for name, arguments in calls:
            result = await session.call_tool(name, arguments, progress_callback=on_progress)
            results.append(result.model_dump(mode="json", by_alias=True, exclude_none=True))
    print(json.dumps({
        "revision": hello.protocolVersion, "tools": tools, "results": results, "progress": len(progress),
    }))


asyncio.run(main(sys.argv[1], json.loads(sys.argv[2])))
