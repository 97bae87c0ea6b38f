"""A client of the Python SDK 2.x, or of fastmcp 4, which is built on it: lists the tools of an MCP endpoint, calls some,
and answers what it is asked.

Usage: client2.py mcp|fastmcp URL auto|legacy CALLS, CALLS a JSON array of [tool, arguments]. Prints one JSON object.
"""

import asyncio
import json
import sys

import mcp_types as types

asked = []


async def elicit(context, params: types.ElicitRequestFormParams) -> types.ElicitResult:
    asked.append(params.message)
    return types.ElicitResult(action="accept", content={"name": "Ada"})


async def elicit_fast(message: str, response_type: type, params, context) -> dict:
    asked.append(message)
    return {"name": "Ada"}


async def sample(context, params: types.CreateMessageRequestParams) -> types.CreateMessageResult:
    asked.append(params.messages[0].content.text)
    content = types.TextContent(type="text", text="Ada")
    return types.CreateMessageResult(role="assistant", content=content, model="none")


async def sample_fast(messages, params, context) -> str:
    asked.append(messages[0].content.text)
    return "Ada"


def client(sdk: str, url: str, mode: str):
    if sdk == "fastmcp":
        from fastmcp import Client
        return Client(url, mode=mode, elicitation_handler=elicit_fast, sampling_handler=sample_fast)
    from mcp import Client
    return Client(url, mode=mode, elicitation_callback=elicit, sampling_callback=sample)


async def main(sdk: str, url: str, mode: str, calls: list) -> None:
    async with client(sdk, url, mode) as peer:
        listed, results = await peer.list_tools(), []
        for name, arguments in calls:
            try:
                result = await peer.call_tool(name, arguments)
                results.append([block.text for block in result.content])
            except Exception as error:
                results.append({"error": str(error)})
        revision = getattr(peer, "protocol_version", None) or peer.session.protocol_version
    tools = [tool.name for tool in getattr(listed, "tools", listed)]
    print(json.dumps({"revision": revision, "tools": tools, "results": results, "asked": asked}))


asyncio.run(main(*sys.argv[1:4], json.loads(sys.argv[4])))
