// The whole cycle with Node's http, keep-alive and ETags. Usage: node etags.js http://HOST:PORT
"use strict";
const http = require("http");

const url = process.argv[2] + "/metadata/scheduledevents?api-version=2020-07-01";
const agent = new http.Agent({ keepAlive: true, maxSockets: 1 });
let etag = null;
let unchanged = 0;

function ask(method, headers, body) {
  return new Promise((resolve, reject) => {
    const request = http.request(url, { method, agent, headers: { Metadata: "true", ...headers } }, (answer) => {
      let text = "";
      answer.on("data", (part) => (text += part));
      answer.on("end", () => resolve({ status: answer.statusCode, headers: answer.headers, text }));
    });
    request.on("error", reject);
    request.end(body);
  });
}

async function waitFor(right) {
  for (let tries = 0; tries < 60; tries++) {
    const answer = await ask("GET", etag ? { "If-None-Match": etag } : {});
    if (answer.status === 304) unchanged++;
    else if (answer.status !== 200) throw new Error(`${answer.status}: ${answer.text}`);
    else {
      etag = answer.headers.etag;
      const events = JSON.parse(answer.text).Events;
      if (right(events)) return events;
    }
    await new Promise((resolve) => setTimeout(resolve, 400));
  }
  throw new Error("it did not happen in time");
}

(async () => {
  const [event] = await waitFor((events) => events.length && events[0].EventStatus === "Scheduled");
  console.log("seen " + event.EventId);
  const approval = JSON.stringify({ StartRequests: [{ EventId: event.EventId }] });
  const same = await ask("GET", { "If-None-Match": etag });
  if (same.status !== 304) throw new Error(`${same.status} where nothing changed`);
  const approved = await ask("POST", { "Content-Type": "application/json" }, approval);
  if (approved.status !== 200) throw new Error(`${approved.status}: ${approved.text}`);
  console.log("approved");
  await waitFor((events) => events.length && events[0].EventStatus === "Started");
  console.log("started");
  await waitFor((events) => !events.length);
  console.log("gone");
  if (!unchanged) throw new Error("no 304 was ever seen");
  agent.destroy();
})().catch((error) => {
  console.error(error.message);
  process.exit(1);
});
