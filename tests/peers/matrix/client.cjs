// A client of the TypeScript SDK, 1.x or 2.x: lists the tools of an MCP endpoint, calls some, and answers what it is
// asked.
//
// Usage: client.cjs PACKAGE URL legacy|auto CALLS, PACKAGE the folder of the SDK, CALLS a JSON array of [tool, arguments].
// An URL that ends in /sse is of HTTP+SSE, one of ws:// of WebSocket. Prints one JSON object.

const [folder, url, mode, calls] = process.argv.slice(2);
const newer = folder.endsWith("/client");
const of = (part) => require(newer ? folder : `${folder}/dist/cjs/${part}.js`);
const { Client } = of("client/index");

function connection() {
  const at = new URL(url);
  if (at.protocol === "ws:") return new (of("client/websocket").WebSocketClientTransport)(at);
  if (url.endsWith("/sse")) return new (of("client/sse").SSEClientTransport)(at);
  return new (of("client/streamableHttp").StreamableHTTPClientTransport)(at);
}

const asked = [];
const elicited = async ({ params }) => {
  asked.push(params.message);
  return { action: "accept", content: { name: "Ada" } };
};
const sampled = async ({ params }) => {
  const content = [params.messages[0].content].flat()[0];
  asked.push(content.text);
  return { role: "assistant", model: "none", content: { type: "text", text: "Ada" } };
};

async function main() {
  const capabilities = { sampling: {} };
  const types = newer ? {} : of("types");
  const elicits = newer || "ElicitRequestSchema" in types;
  if (elicits) capabilities.elicitation = {};
  const client = new Client({ name: "asked", version: "1" }, { capabilities, versionNegotiation: { mode } });
  client.setRequestHandler(newer ? "sampling/createMessage" : types.CreateMessageRequestSchema, sampled);
  if (elicits) client.setRequestHandler(newer ? "elicitation/create" : types.ElicitRequestSchema, elicited);

  let revision = null;
  const request = client.request.bind(client);
  client.request = async (sent, ...rest) => {
    const result = await request(sent, ...rest);
    if (sent.method === "initialize") revision = result.protocolVersion;
    return result;
  };
  await client.connect(connection());
  const { tools } = await client.listTools();
  const results = [];
  for (const [name, given] of JSON.parse(calls)) {
    const called = client.callTool({ name, arguments: given });
    results.push(await called.then(
      (result) => result.content.map((block) => block.text),
      (error) => ({ error: error.message }),
    ));
  }
  revision = client.getNegotiatedProtocolVersion?.() ?? revision;
  await client.close();
  console.log(JSON.stringify({ revision, tools: tools.map((tool) => tool.name), results, asked }));
}

main().then(() => process.exit(0), (error) => {
  console.error(error);
  process.exit(1);
});
