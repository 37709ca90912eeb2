// Feeds requests to Perfetto's trace processor: `node trace_processor.js FOLDER REQUESTS REPLIES`.
//
// FOLDER has the engine of Perfetto's user interface, which is made for a worker of a browser: engine_bundle.js and
// trace_processor.wasm. REQUESTS and REPLIES are files of messages in Perfetto's protocol (TraceProcessorRpcStream).
"use strict";

const fs = require("fs");
const path = require("path");
const vm = require("vm");

const node = process;
const [folder, requests, replies] = node.argv.slice(2);

// What the engine expects of a worker. It refuses to start where it finds Node's `process`.
globalThis.process = undefined;
globalThis.self = globalThis;
globalThis.location = { href: "file:///engine_bundle.js" };
globalThis.WorkerGlobalScope = Object;
globalThis.XMLHttpRequest = class {
  open(method, url) {
    this.file = path.join(folder, path.basename(url));
  }

  send() {
    const data = fs.readFileSync(this.file);
    this.status = 200;
    this.response = data.buffer.slice(data.byteOffset, data.byteOffset + data.length);
  }
};

const answers = [];
const port = { postMessage: (answer) => answers.push(answer) };

const engine = path.join(folder, "engine_bundle.js");
vm.runInThisContext(fs.readFileSync(engine, "utf8"), { filename: "engine_bundle.js" });
self.onmessage({ data: port });

// The engine is ready in the next turn of the event loop.
setTimeout(() => {
  port.onmessage({ data: new Uint8Array(fs.readFileSync(requests)) });
  fs.writeFileSync(replies, Buffer.concat(answers));
  node.exit(0);
}, 0);
