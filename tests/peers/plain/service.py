"""A JSON-RPC service as people write them in Python: one function that takes whatever was posted.

Usage: service.py flask|aiohttp|websockets|java. It takes a port of its own and prints where it serves. `echo` gives back its
params, `add` the sum of two, `fail` is an error, `crash` ends with status 500 and a text. How errors come is a matter of
taste: flask sends them with status 200, aiohttp with 400; java stands for services that leave out `jsonrpc` then.
"""

import asyncio
import json
import socket
import sys

KIND = sys.argv[1]


def call(request: dict) -> dict | None:
    """The answer to one request; none to a notification."""
    if "id" not in request:
        return None
    method, params = request["method"], request.get("params")
    answer = {"jsonrpc": "2.0", "id": request["id"]}
    if method == "echo":
        return {**answer, "result": params}
    if method == "add":
        return {**answer, "result": params[0] + params[1]}
    if method == "crash":
        raise RuntimeError("it crashed at line 42")
    code, message = (-32000, "no") if method == "fail" else (-32601, "Method not found")
    answer["error"] = {"code": code, "message": message}
    if KIND == "java":
        del answer["jsonrpc"]
    return answer


def answer_to(text: str | bytes) -> tuple[int, str]:
    """Status and body."""
    asked = json.loads(text)
    if isinstance(asked, list):
        answers = [answer for answer in map(call, asked) if answer is not None]
        return 200, json.dumps(answers) if answers else ""
    answer = call(asked)
    if answer is None:
        return 200 if KIND == "java" else 204, ""
    status = 400 if KIND == "aiohttp" and "error" in answer else 200
    return status, json.dumps(answer)


def listen() -> socket.socket:
    listener = socket.create_server(("127.0.0.1", 0))
    scheme = "ws" if KIND == "websockets" else "http"
    print("%s://127.0.0.1:%d/" % (scheme, listener.getsockname()[1]), flush=True)
    return listener


def of_flask() -> None:
    import flask
    from werkzeug.serving import make_server

    app = flask.Flask(__name__)

    @app.post("/")
    def handle():
        status, body = answer_to(flask.request.get_data())
        return flask.Response(body, status=status, content_type="application/json")

    @app.errorhandler(Exception)
    def crashed(error):
        return flask.Response(f"Internal Server Error: {error}", status=500, content_type="text/plain")

    listener = listen()
    make_server("127.0.0.1", listener.getsockname()[1], app, threaded=True, fd=listener.fileno()).serve_forever()


def of_aiohttp() -> None:
    from aiohttp import web

    async def handle(request: web.Request) -> web.Response:
        try:
            status, body = answer_to(await request.read())
        except Exception as error:
            return web.Response(status=500, text=f"Internal Server Error: {error}")
        return web.Response(status=status, text=body, content_type="application/json")

    app = web.Application()
    app.router.add_post("/", handle)
    web.run_app(app, sock=listen(), print=None)


async def of_websockets() -> None:
    from websockets.asyncio.server import serve

    async def handle(connection) -> None:
        async for text in connection:
            _, body = answer_to(text)
            if body:
                await connection.send(body)

    async with serve(handle, sock=listen()) as server:
        await server.serve_forever()


if KIND in ("flask", "java"):
    of_flask()
elif KIND == "aiohttp":
    of_aiohttp()
else:
    asyncio.run(of_websockets())
