// Keeps a page as it is on the service: on news the same page is fetched and its live parts are put in place.
// Everything works without this file: a link reloads the page.
"use strict";
(() => {
  const SOON_MS = 150, NOW_AND_THEN_MS = 15000, FIRST_WAIT_MS = 1000, LONGEST_WAIT_MS = 30000;
  const main = document.querySelector("main[data-url]");
  const live = document.getElementById("live");
  if (!main || !live) return;

  // -- what was done is said once, and a form that must not be sent twice is sent once
  if (new URLSearchParams(location.search).has("done")) history.replaceState(null, "", main.dataset.url);
  for (const form of document.querySelectorAll("form[data-once]")) {
    form.addEventListener("submit", (event) => {
      if (form.dataset.sent) event.preventDefault();
      form.dataset.sent = "yes";
    });
    window.addEventListener("pageshow", () => delete form.dataset.sent);
  }

  // -- of the plan form what the chosen kind needs
  const plan = document.querySelector(".plan-form");
  const choose = () => {
    const kind = plan.querySelector("input[name=kind]:checked");
    plan.classList.toggle("is-maintenance", kind !== null && kind.value === "maintenance");
    plan.classList.toggle("is-user", kind !== null && kind.value !== "maintenance");
  };
  if (plan) {
    plan.addEventListener("change", choose);
    choose();
  }

  // -- live parts
  const parts = () => [...document.querySelectorAll("[data-live]")];
  if (parts().length < 2) return; // nothing but the clock
  let source = null, wait = FIRST_WAIT_MS, timer = 0, fetching = false, again = false, out = false;

  const say = (text, lost) => {
    if (live.textContent !== text) live.textContent = text;
    live.classList.toggle("lost", Boolean(lost));
  };

  const isTyping = (part) => part.contains(document.activeElement) && document.activeElement.matches("input, select, textarea");

  const place = (page) => {
    const focused = document.activeElement ? document.activeElement.id : "";
    for (const part of parts()) {
      const fresh = page.getElementById(part.id);
      if (!fresh) {
        part.replaceChildren();
        continue;
      }
      for (const each of part.querySelectorAll("details[open][id]")) {
        const same = fresh.querySelector("#" + CSS.escape(each.id));
        if (same) same.open = true;
      }
      for (const each of part.querySelectorAll("input:not([type=hidden])[name]")) {
        const same = fresh.querySelector(`input[name="${CSS.escape(each.name)}"]`);
        if (same && each.value) same.value = each.value;
      }
      if (part.innerHTML === fresh.innerHTML || isTyping(part)) continue;
      part.replaceWith(document.importNode(fresh, true));
    }
    for (const fresh of page.querySelectorAll("[data-live]")) { // a part that was not there before, such as an order
      if (document.getElementById(fresh.id)) continue;
      const before = fresh.previousElementSibling && document.getElementById(fresh.previousElementSibling.id);
      if (before) before.after(document.importNode(fresh, true));
    }
    if (focused && document.activeElement === document.body) {
      const same = document.getElementById(focused);
      if (same) same.focus({ preventScroll: true });
    }
  };

  const refresh = async () => {
    if (fetching) {
      again = true;
      return;
    }
    fetching = true;
    try {
      const answer = await fetch(main.dataset.url, { credentials: "same-origin" });
      if (answer.status === 401) {
        out = true;
        close();
        say("Your log-in has ended. What you see and typed stays; send it, or reload, to log in again.", true);
        return;
      }
      if (answer.ok) place(new DOMParser().parseFromString(await answer.text(), "text/html"));
    } catch {
      // the stream says that we are cut off
    } finally {
      fetching = false;
      if (again) {
        again = false;
        soon();
      }
    }
  };

  const soon = () => {
    clearTimeout(timer);
    timer = setTimeout(refresh, SOON_MS);
  };

  const close = () => {
    if (source) source.close();
    source = null;
  };

  const open = () => {
    if (source || out || document.hidden) return;
    source = new EventSource("/live");
    source.addEventListener("open", () => {
      wait = FIRST_WAIT_MS;
      say("Live: changes appear by themselves.");
      soon(); // whatever happened while nobody listened
    });
    source.addEventListener("change", soon);
    source.addEventListener("error", () => {
      close();
      say(`Cut off. Trying again in ${Math.round(wait / 1000)} s.`, true);
      setTimeout(open, wait);
      wait = Math.min(wait * 2, LONGEST_WAIT_MS);
      soon();
    });
  };

  // A hidden page needs no stream: browsers allow few connections to one place.
  document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
  window.addEventListener("pagehide", close);
  setInterval(() => {
    if (!document.hidden && !out) refresh(); // time passes without news
  }, NOW_AND_THEN_MS);
  open();
})();
