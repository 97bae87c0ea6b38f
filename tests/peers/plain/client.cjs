// Calls JSON-RPC endpoints over HTTP with npm `jayson`, or over WebSocket with npm `ws`, everything at once.
//
// Usage: client.cjs jayson|ws FOLDER URL…, FOLDER where the packages are. Prints what each said, as a JSON array.

const [kind, folder, ...urls] = process.argv.slice(2);
const ECHO = { text: "süß 🚂" };

async function overHttp(url) {
  const jayson = require(`${folder}/jayson`);
  const client = jayson.Client.http(url);
  const sent = (...args) =>
    new Promise((resolve, reject) => client.request(...args, (error, answer) => (error ? reject(error) : resolve(answer))));
  const one = (method, params, id) => client.request(method, params, id, false);
  const [echo, add, fail, batch] = await Promise.all([
    sent("echo", ECHO),
    sent("add", [1, 2]),
    sent("fail", []),
    sent([one("add", [3, 4], 3), one("add", [8, 8], null), one("fail", [], 4)]),
  ]);
  return { echo, add, fail, batch };
}

async function overWebSocket(url) {
  const { WebSocket } = require(`${folder}/ws`);
  const socket = new WebSocket(url);
  const request = (id, method, params) => ({ jsonrpc: "2.0", ...(id !== null && { id }), method, params });
  const asked = [
    request("e", "echo", ECHO),
    request(1, "add", [1, 2]),
    request(2, "fail", []),
    request(null, "add", [7, 7]),
    [request(3, "add", [3, 4]), request(null, "add", [8, 8]), request(4, "fail", [])],
  ];
  const heard = {};
  await new Promise((resolve, reject) => {
    socket.on("error", reject);
    socket.on("open", () => asked.forEach((one) => socket.send(JSON.stringify(one))));
    socket.on("message", (data) => {
      const answer = JSON.parse(data);
      heard[Array.isArray(answer) ? "batch" : answer.id] = answer;
      if (Object.keys(heard).length === 4) resolve();
    });
  });
  socket.close();
  return { echo: heard.e, add: heard[1], fail: heard[2], batch: heard.batch };
}

async function main() {
  const said = [];
  for (const url of urls) {
    const { echo, add, fail, batch } = await (kind === "ws" ? overWebSocket(url) : overHttp(url));
    const of = (id) => batch.find((answer) => answer.id === id);
    said.push({
      echo: echo.result,
      add: add.result,
      fail: fail.error.code,
      batch: [of(3).result, of(4).error.code, batch.length],
    });
  }
  console.log(JSON.stringify(said));
}

main().then(() => process.exit(0), (error) => {
  console.error(error);
  process.exit(1);
});
