// A server of the TypeScript SDK 2.x over stdio, of both eras: echo gives back what it got, ask wants to know the client's
// name.
//
// Usage: server2.cjs PACKAGE, PACKAGE the folder of the SDK.

const [folder] = process.argv.slice(2);
const { Server, acceptedContent, inputRequired } = require(folder);
const { serveStdio } = require(`${folder}/dist/stdio.cjs`);

const CAPABILITIES = "io.modelcontextprotocol/clientCapabilities";
const NAME = { type: "object", properties: { name: { type: "string" } }, required: ["name"] };
const text = (text) => ({ content: [{ type: "text", text }] });

function ask(server, { envelope, inputResponses, requestState }) {
  const declared = envelope?.[CAPABILITIES] ?? server.getClientCapabilities();
  if (!declared?.elicitation) return text("hello stranger");
  const answer = acceptedContent(inputResponses, "who");
  if (!answer) {
    const who = inputRequired.elicit({ message: "Your name?", requestedSchema: NAME });
    return inputRequired({ inputRequests: { who }, requestState: "st.ate/+=" });
  }
  if (requestState() !== "st.ate/+=") throw new Error("the state is another");
  return text(`hello ${answer.name}`);
}

serveStdio(() => {
  const server = new Server({ name: "polite", version: "1" }, { capabilities: { tools: {} } });
  const tool = (name) => ({ name, description: "of the SDK", inputSchema: { type: "object" } });
  server.setRequestHandler("tools/list", async () => ({ tools: [tool("echo"), tool("ask")] }));
  server.setRequestHandler("tools/call", async ({ params }, context) =>
    params.name === "ask" ? ask(server, context.mcpReq) : text(params.arguments.message),
  );
  return server;
});
