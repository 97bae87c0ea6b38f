// A server of the TypeScript SDK 1.x: echo gives back what it got, ask wants to know the client's name.
//
// Usage: server.cjs PACKAGE stdio|http|sse, PACKAGE the folder of the SDK. Over HTTP it takes a port of its own and prints
// where it serves.

const http = require("node:http");
const { randomUUID } = require("node:crypto");

const [folder, transport] = process.argv.slice(2);
const of = (part) => require(`${folder}/dist/cjs/${part}.js`);
const { Server } = of("server/index");
const { ListToolsRequestSchema, CallToolRequestSchema } = of("types");

const text = (text) => ({ content: [{ type: "text", text }] });
const NAME = { type: "object", properties: { name: { type: "string" } }, required: ["name"] };

async function ask(server) {
  const declared = server.getClientCapabilities();
  if (declared.elicitation && server.elicitInput) {
    const answer = await server.elicitInput({ message: "Your name?", requestedSchema: NAME });
    return text(`hello ${answer.content.name}`);
  }
  if (declared.sampling) {
    const messages = [{ role: "user", content: { type: "text", text: "Your name?" } }];
    const answer = await server.createMessage({ messages, maxTokens: 10 });
    return text(`hello ${answer.content.text}`);
  }
  return text("hello stranger");
}

function polite() {
  const server = new Server({ name: "polite", version: "1" }, { capabilities: { tools: {} } });
  const tool = (name) => ({ name, description: "of the SDK", inputSchema: { type: "object" } });
  server.setRequestHandler(ListToolsRequestSchema, async () => ({ tools: [tool("echo"), tool("ask")] }));
  server.setRequestHandler(CallToolRequestSchema, async ({ params }) =>
    params.name === "ask" ? ask(server) : text(params.arguments.message),
  );
  return server;
}

const sessions = new Map();

/** Streamable HTTP: one server and transport a session. */
async function streamable(request, response) {
  let open = sessions.get(request.headers["mcp-session-id"]);
  if (!open) {
    const { StreamableHTTPServerTransport } = of("server/streamableHttp");
    open = new StreamableHTTPServerTransport({
      sessionIdGenerator: randomUUID,
      onsessioninitialized: (id) => sessions.set(id, open),
    });
    await polite().connect(open);
  }
  await open.handleRequest(request, response);
}

/** HTTP+SSE: a stream for each client, and where it posts to. */
async function sse(request, response) {
  const at = new URL(request.url, "http://localhost");
  if (request.method === "GET") {
    const { SSEServerTransport } = of("server/sse");
    const open = new SSEServerTransport("/messages", response);
    sessions.set(open.sessionId, open);
    await polite().connect(open);
  } else {
    const open = sessions.get(at.searchParams.get("sessionId"));
    if (open) await open.handlePostMessage(request, response);
    else response.writeHead(404).end();
  }
}

if (transport === "stdio") {
  const { StdioServerTransport } = of("server/stdio");
  polite().connect(new StdioServerTransport());
} else {
  const serve = transport === "sse" ? sse : streamable;
  const listener = http.createServer((request, response) => serve(request, response).catch(console.error));
  listener.listen(0, "127.0.0.1", () => {
    console.log(`http://127.0.0.1:${listener.address().port}/${transport === "sse" ? "sse" : "mcp"}`);
  });
}
