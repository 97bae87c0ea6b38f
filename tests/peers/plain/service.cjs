// A JSON-RPC service in JavaScript: `echo` gives back its params, `add` the sum of two, `fail` is an error.
//
// Usage: service.cjs jayson|ws FOLDER, FOLDER where the packages are. It takes a port of its own and prints where it serves.

const [kind, folder] = process.argv.slice(2);
const jayson = require(`${folder}/jayson`);

const server = new jayson.Server({
  echo: (params, done) => done(null, params),
  add: ([a, b], done) => done(null, a + b),
  fail: (params, done) => done({ code: -32000, message: "no" }),
});

if (kind === "jayson") {
  const listener = server.http();
  listener.listen(0, "127.0.0.1", () => console.log(`http://127.0.0.1:${listener.address().port}/`));
} else {
  const { WebSocketServer } = require(`${folder}/ws`);
  const listener = new WebSocketServer({ port: 0, host: "127.0.0.1" });
  listener.on("listening", () => console.log(`ws://127.0.0.1:${listener.address().port}/`));
  listener.on("connection", (socket) => {
    socket.on("message", (data) => {
      const settled = (error, result) => error ?? result;
      server.call(data.toString(), (error, result) => {
        const answer = settled(error, result);
        if (answer) socket.send(JSON.stringify(answer));
      });
    });
  });
}
