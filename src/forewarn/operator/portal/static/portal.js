// Keeps a page up to date: when the service reports a change, fetch the same page and replace its live parts.
// Everything works without this file: a link reloads the page.
"use strict";
(() => {
  const SOON_MS = 150, REFRESH_EVERY_MS = 15000, FIRST_WAIT_MS = 1000, LONGEST_WAIT_MS = 30000;
  const main = document.querySelector("main[data-url]");
  const live = document.getElementById("live");
  if (!main || !live) return;

  // -- show the result of an action once; submit a form with data-once only once
  if (new URLSearchParams(location.search).has("done")) history.replaceState(null, "", main.dataset.url);
  for (const form of document.querySelectorAll("form[data-once]")) {
    form.addEventListener("submit", (event) => {
      if (form.dataset.sent) event.preventDefault();
      form.dataset.sent = "yes";
    });
    window.addEventListener("pageshow", () => delete form.dataset.sent);
  }

  // -- show the fields of the plan form that the chosen kind needs
  const plan = document.querySelector(".plan-form");
  const showFields = () => {
    const kind = plan.querySelector("input[name=kind]:checked");
    plan.classList.toggle("is-maintenance", kind !== null && kind.value === "maintenance");
    plan.classList.toggle("is-user", kind !== null && kind.value !== "maintenance");
  };
  if (plan) {
    plan.addEventListener("change", showFields);
    showFields();
  }

  // -- live parts
  const parts = () => [...document.querySelectorAll("[data-live]")];
  if (parts().length < 2) return; // only the clock
  let source = null, wait = FIRST_WAIT_MS, timer = 0, fetching = false, again = false, loggedOut = false;
  let failed = 0, postponed = false, moved = false;

  const show = (text, lost) => {
    if (live.textContent !== text) live.textContent = text;
    live.classList.toggle("lost", Boolean(lost));
  };

  const showState = () => {
    if (loggedOut || !source || source.readyState !== EventSource.OPEN) return; // keep the message about that
    if (failed) show(`This page could not be updated (${failed}): it may be out of date.`, true);
    else if (postponed) show("The part that you are using has changed: it updates when you leave it.");
    else show("Live: this page updates by itself.");
  };

  // -- a part is not replaced while the reader types in it, has selected text in it, or is about to press a button
  const aboutToPress = () => moved && document.querySelector("[data-live] button:hover") !== null;
  const isTyping = (part) => part.contains(document.activeElement) && document.activeElement.matches("input, select, textarea");
  const isSelected = (part) => !getSelection().isCollapsed && getSelection().containsNode(part, true);
  const inUse = (part) => aboutToPress() || isTyping(part) || isSelected(part);
  const catchUp = () => {
    if (postponed && !parts().some(inUse)) soon();
  };
  document.addEventListener("pointermove", () => (moved = true));
  for (const name of ["focusout", "selectionchange", "pointerout"]) document.addEventListener(name, () => setTimeout(catchUp));

  const withoutDistances = (part) => part.textContent.replace(/\bnow\b|\b(in )?\d+[dhms]( \d+[dhms])?\b( ago)?/g, "").replace(/\s+/g, " ");

  // -- move the focus to the same element of the new part: the same id, or the same tag with the same address or text
  const nameOf = (one) => one.getAttribute("href") || one.getAttribute("aria-label") || one.textContent;
  const alike = (part, one) => [...part.querySelectorAll(one.tagName)].filter((each) => nameOf(each) === nameOf(one));
  const replace = (part, fresh) => {
    const one = part.contains(document.activeElement) ? document.activeElement : null;
    const nth = one ? alike(part, one).indexOf(one) : 0;
    part.replaceWith(fresh);
    if (!one) return;
    const same = (one.id && fresh.querySelector("#" + CSS.escape(one.id))) || alike(fresh, one)[nth] || alike(fresh, one)[0] || fresh;
    if (same === fresh) fresh.tabIndex = -1; // the element is gone: focus its part
    same.focus({ preventScroll: true });
  };

  const update = (page) => {
    postponed = false;
    for (const part of parts()) {
      const fresh = page.getElementById(part.id);
      if (fresh && part.innerHTML === fresh.innerHTML) continue;
      if (inUse(part)) {
        const changed = !fresh || withoutDistances(part) !== withoutDistances(fresh);
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
    for (const fresh of page.querySelectorAll("[data-live]")) { // a new part, such as an order
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
      const response = await fetch(main.dataset.url, { credentials: "same-origin" });
      if (response.status === 401) {
        loggedOut = true;
        close();
        show("Your login has ended. This page and your input stay; submit the form or reload to log in again.", true);
        return;
      }
      failed = response.ok ? 0 : response.status;
      if (response.ok) update(new DOMParser().parseFromString(await response.text(), "text/html"));
      showState();
    } catch {
      // the stream reports that the connection is lost
    } finally {
      fetching = false;
      if (again) {
        again = false;
        soon();
      }
    }
  };

  // The first of many changes sets the time: further changes must not delay the refresh.
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
    if (source || loggedOut || document.hidden) return;
    source = new EventSource("/live");
    source.addEventListener("open", () => {
      wait = FIRST_WAIT_MS;
      showState();
      soon(); // get the changes that happened before the stream was open
    });
    source.addEventListener("change", soon);
    source.addEventListener("error", () => {
      close();
      show(`Connection lost. Trying again in ${Math.round(wait / 1000)} s.`, true);
      setTimeout(open, wait);
      wait = Math.min(wait * 2, LONGEST_WAIT_MS);
      soon();
    });
  };

  // A hidden page needs no stream: browsers allow few connections to one site.
  document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
  window.addEventListener("pagehide", close);
  setInterval(() => {
    if (!document.hidden && !loggedOut) refresh(); // times change without any event
  }, REFRESH_EVERY_MS);
  open();
})();
