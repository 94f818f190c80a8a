// Keeps a page up to date: when the service reports a change, fetch the same page and replace its live parts.
// Adds local times and copy buttons. Everything else works without this file: a link reloads the page.
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

  // -- local time beside UTC; the reader switches it off and on, and the browser remembers the choice
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone || "local time";
  const remembered = () => {
    try {
      return localStorage.getItem("forewarn-times");
    } catch {
      return null; // the browser keeps nothing
    }
  };
  let localTimes = remembered() ? remembered() === "local" : zone !== "UTC";
  const dayOf = (moment) => moment.toLocaleDateString("sv"); // 2030-01-31
  const localText = (moment) => {
    const day = dayOf(moment) === dayOf(new Date(document.querySelector("#clock time").dateTime)) ? "" : dayOf(moment) + " ";
    return day + moment.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23", timeZoneName: "short" });
  };
  const addLocalTimes = (root) => {
    for (const each of root.querySelectorAll(".local")) each.remove();
    if (!localTimes) return;
    for (const each of root.querySelectorAll("time[datetime]")) {
      const text = document.createElement("span");
      text.className = "local";
      text.textContent = ` (${localText(new Date(each.dateTime))})`;
      each.after(text);
    }
  };

  // -- copy buttons for ids and new tokens
  const addCopyButtons = (root) => {
    for (const each of root.querySelectorAll("[data-copy]")) {
      const button = document.createElement("button");
      button.type = "button";
      button.className = "small copy";
      const what = document.createElement("span");
      what.className = "hidden";
      what.textContent = ` ${each.dataset.copy}`;
      button.append("Copy", what);
      each.after(" ", button);
    }
  };
  const copy = async (button) => {
    const source = button.previousElementSibling;
    try {
      await navigator.clipboard.writeText(source.textContent.trim());
      button.textContent = "Copied";
    } catch { // browsers allow it only over TLS and on loopback: select the text instead
      getSelection().selectAllChildren(source);
      button.textContent = "Selected: press Ctrl+C";
    }
  };
  document.addEventListener("click", (event) => {
    if (event.target.matches("button.copy")) copy(event.target);
  });

  const enhance = (root) => {
    addLocalTimes(root);
    addCopyButtons(root);
  };
  const choice = document.createElement("label");
  choice.className = "times";
  choice.innerHTML = '<input type="checkbox"> <span></span>';
  choice.querySelector("span").textContent = `Also show times in ${zone}`;
  choice.querySelector("input").checked = localTimes;
  choice.addEventListener("change", (event) => {
    localTimes = event.target.checked;
    try {
      localStorage.setItem("forewarn-times", localTimes ? "local" : "utc");
    } catch {
      // the choice holds for this page only
    }
    addLocalTimes(document);
  });
  document.querySelector("footer").append(choice);
  enhance(document);

  // -- show the fields of the plan form that the chosen kind needs
  const plan = document.querySelector(".plan-form");
  const showFields = () => {
    const kind = plan.querySelector("input[name=kind]:checked");
    plan.classList.toggle("is-maintenance", kind !== null && kind.value === "maintenance");
    plan.classList.toggle("is-drill", kind !== null && kind.value === "drill");
    plan.classList.toggle("is-user", kind !== null && ["restart", "redeploy"].includes(kind.value));
  };
  if (plan) {
    plan.addEventListener("change", showFields);
    showFields();
    for (const row of plan.querySelectorAll(".targets > div")) { // what is typed selects its kind of target
      row.addEventListener("input", (event) => {
        if (event.target.type !== "radio" && event.target.value) row.querySelector("input[type=radio]").checked = true;
      });
    }
  }

  // -- live parts
  const parts = () => [...document.querySelectorAll("[data-live]")];
  if (parts().length < 2) return; // only the clock
  let source = null, wait = FIRST_WAIT_MS, timer = 0, fetching = false, again = false, loggedOut = false;
  let failed = 0, postponed = false, moved = false, pressed = false;

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
    enhance(page);
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
        if (same && each.type === "checkbox") same.checked = each.checked;
        else if (same && each.value) same.value = each.value;
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
    if (fetching || pressed) {
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
      const text = response.ok ? await response.text() : "";
      if (pressed) again = true;
      else {
        if (text) update(new DOMParser().parseFromString(text, "text/html"));
        showState();
      }
    } catch {
      // the stream reports that the connection is lost
    } finally {
      fetching = false;
      refreshAgain();
    }
  };

  const refreshAgain = () => {
    if (!again || fetching || pressed) return;
    again = false;
    soon();
  };

  // -- nothing changes between the press and the release of a mouse button: the browser drops a click that began on another element
  const release = () => {
    pressed = false;
    setTimeout(refreshAgain);
  };
  document.addEventListener("pointerdown", (event) => (pressed = event.button === 0));
  document.addEventListener("pointerup", release);
  document.addEventListener("pointercancel", release);
  document.addEventListener("pointermove", (event) => {
    if (pressed && !event.buttons) release(); // it was released outside the page
  });

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
