"""Lists the tools of an HTTP+SSE endpoint and calls some, with the Python SDK 1.7.1, which speaks 2024-11-05.

Usage: sdk171.py URL CALLS, CALLS a JSON array of [tool, arguments]. Prints one JSON object. Questions for a sample
are answered with what was asked.
"""

import asyncio
import json
import sys

from mcp import ClientSession, types
from mcp.client.sse import sse_client


async def main(url: str, calls: list) -> None:
    asked = []

    async def sample(context, params: types.CreateMessageRequestParams) -> types.CreateMessageResult:
        asked.append(params.messages[0].content.text)
        content = types.TextContent(type="text", text=f"sampled: {asked[-1]}")
        return types.CreateMessageResult(role="assistant", content=content, model="none", stopReason="endTurn")

    async with sse_client(url) as (read, write), ClientSession(read, write, sampling_callback=sample) as session:
        hello = await session.initialize()
        await session.send_ping()
        tools, results = (await session.list_tools()).tools, []
        for name, arguments in calls:
            result = await session.call_tool(name, arguments)
            results.append(result.model_dump(mode="json", by_alias=True, exclude_none=True))
        at_once = await asyncio.gather(*(session.call_tool(name, arguments) for name, arguments in calls))
    print(json.dumps({
        "revision": hello.protocolVersion,
        "tools": [tool.name for tool in tools],
        "results": results,
        "same": results == [r.model_dump(mode="json", by_alias=True, exclude_none=True) for r in at_once],
        "asked": len(asked),
    }))


asyncio.run(main(sys.argv[1], json.loads(sys.argv[2])))
