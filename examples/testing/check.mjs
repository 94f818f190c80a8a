// Tests how an app handles a Redeploy of vm-0, through the emulator's control API.
// Run it with `forewarn emulate -- node --test check.mjs`, or by `npm test` (Node 18 or later, no library).
// Start the app first, with FOREWARN_ENDPOINT set. FOREWARN_SERVER is the emulator's operator port.
import assert from "node:assert";
import { test } from "node:test";

const server = process.env.FOREWARN_SERVER ?? "http://127.0.0.1:8170";
const headers = { "Content-Type": "application/json" };
if (process.env.FOREWARN_TOKEN) headers.Authorization = `Bearer ${process.env.FOREWARN_TOKEN}`;

async function post(path, body) {
  const response = await fetch(server + path, { method: "POST", headers, body: JSON.stringify(body) });
  const answer = await response.json();
  // A failed expectation answers 409, with the reason and the timeline.
  if (!response.ok) assert.fail(answer.error?.message ?? [answer.message, ...answer.timeline].join("\n"));
  return answer;
}

const expect = (what) => post("/v1/emulator/expect", what);

test("the app sees a Redeploy and approves it once", async () => {
  const maintenance = await post("/v1/maintenances", { type: "Redeploy", targets: { machines: ["vm-0"] } });
  const event = maintenance.waves[0].events[0].id;
  await expect({ what: "seen", event, machine: "vm-0", within_s: 10 });
  await post("/v1/clock/advance", { seconds: 120 });
  await expect({ what: "approval", event, machine: "vm-0", times: 1, within_s: 10 });
  await expect({ what: "seen", event, machine: "vm-0", status: "Started", within_s: 10 });
  await post(`/v1/orders/${event}/finish`, {});
  await expect({ what: "no-more" });
});
