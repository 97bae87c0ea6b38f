"""A server of the Python SDK 1.x: echo gives back what it got, ask wants to know the client's name.

Usage: server1.py stdio|sse|http. Over HTTP it takes a port of its own and prints where it serves.
"""

import asyncio
import socket
import sys

from mcp.server.fastmcp import Context, FastMCP
from mcp.types import SamplingMessage, TextContent
from pydantic import BaseModel

server = FastMCP("polite")


class Name(BaseModel):
    name: str


@server.tool()
def echo(message: str) -> str:
    """Gives back what it got."""
    return message


@server.tool()
async def ask(ctx: Context) -> str:
    """Wants to know the client's name."""
    declared = ctx.session.client_params.capabilities
    if getattr(declared, "elicitation", None) is not None and hasattr(ctx, "elicit"):
        answer = await ctx.elicit(message="Your name?", schema=Name)
        return f"hello {answer.data.name}"
    if declared.sampling is not None:
        question = SamplingMessage(role="user", content=TextContent(type="text", text="Your name?"))
        answer = await ctx.session.create_message([question], max_tokens=10)
        return f"hello {answer.content.text}"
    return "hello stranger"


async def serve(transport: str) -> None:
    import uvicorn

    app, path = (server.sse_app(), "sse") if transport == "sse" else (server.streamable_http_app(), "mcp")
    listener = socket.create_server(("127.0.0.1", 0))
    print("http://127.0.0.1:%d/%s" % (listener.getsockname()[1], path), flush=True)
    await uvicorn.Server(uvicorn.Config(app, log_level="warning")).serve(sockets=[listener])


if sys.argv[1] == "stdio":
    server.run("stdio")
else:
    asyncio.run(serve(sys.argv[1]))
