"""A client of the Python SDK 1.x: lists the tools of an MCP endpoint, calls some, and answers what it is asked.

Usage: client1.py URL CALLS, CALLS a JSON array of [tool, arguments]. An URL that ends in /sse is of HTTP+SSE, one of
ws:// of WebSocket. Prints one JSON object.
"""

import asyncio
import inspect
import json
import sys

from mcp import ClientSession, types


def connect(url: str):
    if url.startswith("ws:"):
        from mcp.client.websocket import websocket_client
        return websocket_client(url)
    if url.endswith("/sse"):
        from mcp.client.sse import sse_client
        return sse_client(url)
    from mcp.client.streamable_http import streamablehttp_client
    return streamablehttp_client(url)


async def main(url: str, calls: list) -> None:
    asked = []

    async def sample(context, params: types.CreateMessageRequestParams) -> types.CreateMessageResult:
        asked.append(params.messages[0].content.text)
        return types.CreateMessageResult(role="assistant", content=types.TextContent(type="text", text="Ada"), model="none")

    async def elicit(context, params):
        asked.append(params.message)
        return types.ElicitResult(action="accept", content={"name": "Ada"})

    answers = {"sampling_callback": sample}
    if "elicitation_callback" in inspect.signature(ClientSession).parameters:
        answers["elicitation_callback"] = elicit
    async with connect(url) as streams, ClientSession(*streams[:2], **answers) as session:
        hello = await session.initialize()
        tools, results = (await session.list_tools()).tools, []
        for name, arguments in calls:
            try:
                result = await session.call_tool(name, arguments)
                results.append([block.text for block in result.content])
            except Exception as error:
                results.append({"error": str(error)})
    print(json.dumps({
        "revision": hello.protocolVersion, "tools": [tool.name for tool in tools], "results": results, "asked": asked,
    }))


asyncio.run(main(sys.argv[1], json.loads(sys.argv[2])))
