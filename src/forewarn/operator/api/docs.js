"use strict";
// The browsable documentation: made from openapi.json, nothing fetched from elsewhere. Text is only ever set as text.

const make = (tag, text, ...children) => {
  const element = document.createElement(tag);
  if (text) element.textContent = text;
  element.append(...children);
  return element;
};

const shapeOf = (schema, all, depth = 0) => {
  if (!schema) return "nothing";
  if (schema.$ref) {
    const name = schema.$ref.split("/").pop();
    return depth > 4 ? name : shapeOf(all[name], all, depth);
  }
  if (schema.anyOf) return schema.anyOf.map((each) => shapeOf(each, all, depth)).join(" or ");
  if (schema.enum) return schema.enum.map((each) => JSON.stringify(each)).join(" | ");
  if (schema.type === "array") return "[" + shapeOf(schema.items, all, depth) + ", …]";
  if (schema.properties) {
    const pad = "  ".repeat(depth + 1);
    const rows = Object.entries(schema.properties).map(([name, each]) => {
      const needed = (schema.required || []).includes(name) ? "" : "?";
      return `${pad}${name}${needed}: ${shapeOf(each, all, depth + 1)}`;
    });
    return "{\n" + rows.join(",\n") + "\n" + "  ".repeat(depth) + "}";
  }
  return (schema.format || schema.type || "anything") + "";
};

const tryIt = (method, path, parameters, body) => {
  const form = make("form");
  const inputs = parameters.map((parameter) => {
    const input = make("input");
    form.append(make("label", `${parameter.name} (${parameter.in}) `, input));
    return [parameter, input];
  });
  const text = body ? make("textarea") : null;
  if (text) form.append(make("label", "body ", text));
  const answer = make("pre");
  answer.hidden = true;
  form.append(make("button", "Try it"), answer);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    let target = path;
    const query = new URLSearchParams();
    const headers = {};
    for (const [parameter, input] of inputs) {
      if (parameter.in === "path") target = target.replace(`{${parameter.name}}`, encodeURIComponent(input.value));
      else if (input.value && parameter.in === "query") query.append(parameter.name, input.value);
      else if (input.value) headers[parameter.name] = input.value;
    }
    const token = document.getElementById("token").value;
    if (token) headers.Authorization = `Bearer ${token}`;
    if (text) headers["Content-Type"] = "application/json";
    const url = query.size ? `${target}?${query}` : target;
    answer.hidden = false;
    try {
      const response = await fetch(url, { method, headers, body: text ? text.value : undefined });
      const content = await response.text();
      let shown = content;
      try { shown = JSON.stringify(JSON.parse(content), null, 2); } catch { /* not JSON: as it is */ }
      answer.textContent = `${response.status} ${response.statusText}\n\n${shown}`;
    } catch (error) {
      answer.textContent = `not reachable: ${error}`;
    }
  });
  return form;
};

const show = (api) => {
  const all = api.components.schemas;
  const main = document.getElementById("calls");
  main.textContent = "";
  document.getElementById("about").textContent = api.info.description;
  const sections = {};
  for (const [path, methods] of Object.entries(api.paths)) {
    for (const [method, call] of Object.entries(methods)) {
      const tag = call.tags[0];
      if (!sections[tag]) main.append((sections[tag] = make("section", "", make("h2", tag))));
      const details = make("details", "", make("summary", "", make("b", method.toUpperCase()), make("code", path), ` ${call.summary}`));
      details.append(make("p", call.description || ""));
      const parameters = call.parameters || [];
      if (parameters.length) {
        const rows = parameters.map((each) =>
          make("tr", "", make("td", each.name), make("td", each.in), make("td", shapeOf(each.schema, all))));
        details.append(make("table", "", ...rows));
      }
      const takes = call.requestBody && call.requestBody.content["application/json"];
      if (takes) details.append(make("h4", "takes"), make("pre", shapeOf(takes.schema, all)));
      for (const [status, response] of Object.entries(call.responses)) {
        if (status === "default") continue;
        const content = Object.values(response.content || {})[0];
        details.append(make("h4", `${status} ${response.description}`));
        if (content) details.append(make("pre", shapeOf(content.schema, all)));
      }
      if (path !== "/v1/stream") details.append(tryIt(method.toUpperCase(), path, parameters, takes));
      sections[tag].append(details);
    }
  }
};

fetch("/v1/openapi.json").then((response) => response.json()).then(show).catch((error) => {
  document.getElementById("calls").textContent = `The description could not be read: ${error}`;
});
