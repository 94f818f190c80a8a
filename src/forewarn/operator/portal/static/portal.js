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
  let failed = 0, postponed = false, moved = false;

  const say = (text, lost) => {
    if (live.textContent !== text) live.textContent = text;
    live.classList.toggle("lost", Boolean(lost));
  };

  const tell = () => {
    if (out || !source || source.readyState !== EventSource.OPEN) return; // what was said of that stands
    if (failed) say(`This page could not be read again (${failed}): what you see may be old.`, true);
    else if (postponed) say("What you are using has changed: it is shown anew when you leave it.");
    else say("Live: changes appear by themselves.");
  };

  // -- whoever types in a part, has marked words of it or is about to press a button is not disturbed: the next look shows it
  const aboutToPress = () => moved && document.querySelector("[data-live] button:hover") !== null;
  const isTyping = (part) => part.contains(document.activeElement) && document.activeElement.matches("input, select, textarea");
  const isMarked = (part) => !getSelection().isCollapsed && getSelection().containsNode(part, true);
  const inUse = (part) => aboutToPress() || isTyping(part) || isMarked(part);
  const left = () => {
    if (postponed && !parts().some(inUse)) soon();
  };
  document.addEventListener("pointermove", () => (moved = true));
  for (const name of ["focusout", "selectionchange", "pointerout"]) document.addEventListener(name, () => setTimeout(left));

  const withoutSpans = (part) => part.textContent.replace(/\bnow\b|\b(in )?\d+ (s|min|h|d)\b( ago)?/g, "").replace(/\s+/g, " ");

  // -- the focus goes on to the same thing in the fresh part: of the same id, else of the same kind and address or words
  const nameOf = (one) => one.getAttribute("href") || one.getAttribute("aria-label") || one.textContent;
  const alike = (part, one) => [...part.querySelectorAll(one.tagName)].filter((each) => nameOf(each) === nameOf(one));
  const replace = (part, fresh) => {
    const one = part.contains(document.activeElement) ? document.activeElement : null;
    const nth = one ? alike(part, one).indexOf(one) : 0;
    part.replaceWith(fresh);
    if (!one) return;
    const same = (one.id && fresh.querySelector("#" + CSS.escape(one.id))) || alike(fresh, one)[nth] || alike(fresh, one)[0] || fresh;
    if (same === fresh) fresh.tabIndex = -1; // it is gone: go on from here
    same.focus({ preventScroll: true });
  };

  const place = (page) => {
    postponed = false;
    for (const part of parts()) {
      const fresh = page.getElementById(part.id);
      if (fresh && part.innerHTML === fresh.innerHTML) continue;
      if (inUse(part)) {
        const changed = !fresh || withoutSpans(part) !== withoutSpans(fresh);
        part.classList.toggle("changed", changed && part.id !== "clock");
        postponed = postponed || part.classList.contains("changed");
        continue;
      }
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
      replace(part, document.importNode(fresh, true));
    }
    for (const fresh of page.querySelectorAll("[data-live]")) { // a part that was not there before, such as an order
      if (document.getElementById(fresh.id) || aboutToPress()) continue;
      const before = fresh.previousElementSibling && document.getElementById(fresh.previousElementSibling.id);
      if (before) before.after(document.importNode(fresh, true));
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
      failed = answer.ok ? 0 : answer.status;
      if (answer.ok) place(new DOMParser().parseFromString(await answer.text(), "text/html"));
      tell();
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

  // The first of many changes sets the time: a steady stream of them must not put it off.
  const soon = () => {
    if (timer) return;
    timer = setTimeout(() => {
      timer = 0;
      refresh();
    }, SOON_MS);
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
      tell();
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
