"""A server of the Python SDK 2.x, or of fastmcp 4, which is built on it, of both eras: echo gives back what it got, ask
wants to know the client's name.

Usage: server2.py mcp|fastmcp stdio|http. Over HTTP it takes a port of its own and prints where it serves.
"""

import asyncio
import socket
import sys
from typing import Annotated

from pydantic import BaseModel

SDK, TRANSPORT = sys.argv[1:3]


class Name(BaseModel):
    name: str


def of_mcp():
    from mcp.server.mcpserver import Context, MCPServer
    from mcp.server.mcpserver.resolve import Elicit, Resolve

    server = MCPServer("polite")

    async def who(ctx: Context) -> Elicit[Name] | Name:
        declared = ctx.client_capabilities
        if declared is None or declared.elicitation is None:
            return Name(name="stranger")
        return Elicit("Your name?", Name)

    @server.tool()
    async def ask(name: Annotated[Name, Resolve(who)]) -> str:
        """Wants to know the client's name."""
        return f"hello {name.name}"

    return server


def of_fastmcp():
    from fastmcp import Context, FastMCP
    from mcp_types import ElicitRequest, ElicitRequestFormParams, InputRequiredResult

    server = FastMCP("polite")

    @server.tool()
    async def ask(ctx: Context) -> str | InputRequiredResult:
        """Wants to know the client's name."""
        declared = ctx.session.client_capabilities
        if declared is None or declared.elicitation is None:
            return "hello stranger"
        if ctx.session.protocol_version < "2026-07-28":
            answer = await ctx.elicit("Your name?", Name)
            return f"hello {answer.data.name}"
        if answers := ctx.input_responses:
            assert ctx.request_state == "st.ate/+="
            return f"hello {answers['who'].content['name']}"
        form = ElicitRequestFormParams(message="Your name?", requested_schema=Name.model_json_schema())
        return InputRequiredResult(input_requests={"who": ElicitRequest(params=form)}, request_state="st.ate/+=")

    return server


server = of_mcp() if SDK == "mcp" else of_fastmcp()


@server.tool()
def echo(message: str) -> str:
    """Gives back what it got."""
    return message


async def serve() -> None:
    import uvicorn

    app = server.streamable_http_app() if SDK == "mcp" else server.http_app()
    listener = socket.create_server(("127.0.0.1", 0))
    print("http://127.0.0.1:%d/mcp" % listener.getsockname()[1], flush=True)
    await uvicorn.Server(uvicorn.Config(app, log_level="warning")).serve(sockets=[listener])


if TRANSPORT == "stdio":
    server.run("stdio")
else:
    asyncio.run(serve())
