// Draws the page anew when the fleet has changed: the server sends what changed as events, the page asks for itself and
// takes over the new main part. Without this script the page refreshes itself every few seconds.
"use strict";

(function () {
  const seconds = Number(document.body.dataset.refresh);
  const rest = Number(document.body.dataset.rest) * 1000; // between two drawings
  if (!seconds) {
    return;
  }
  const live = document.getElementById("live");
  let asking = false;
  let wanted = false;
  let last = Date.now();
  let timer = 0;

  function say(text, tone) {
    if (live && live.textContent !== text) {
      live.textContent = text;
      live.className = tone;
    }
  }

  // Whoever types or marks a text is not disturbed.
  function occupied() {
    const focus = document.activeElement;
    const typing = focus && focus.closest("main") && focus.matches("input, select, textarea");
    const selection = window.getSelection();
    return typing || (selection && !selection.isCollapsed);
  }

  function nameOf(element) {
    if (!element || !element.closest("main")) {
      return "";
    }
    return element.id || element.getAttribute("aria-label") || element.getAttribute("href") || element.textContent;
  }

  function takeOver(next) {
    const main = document.getElementById("main");
    const focused = nameOf(document.activeElement);
    const scrolled = Array.from(main.querySelectorAll(".scroll, pre"), (e) => [e.scrollLeft, e.scrollTop]);
    main.replaceWith(document.adoptNode(next));
    Array.from(next.querySelectorAll(".scroll, pre")).forEach((e, i) => {
      if (scrolled[i]) {
        e.scrollLeft = scrolled[i][0];
        e.scrollTop = scrolled[i][1];
      }
    });
    if (focused) {
      const same = Array.from(next.querySelectorAll("a, button, [tabindex]")).find((e) => nameOf(e) === focused);
      if (same) {
        same.focus({ preventScroll: true });
      }
    }
  }

  async function draw() {
    if (asking || document.hidden || occupied()) {
      wanted = true;
      return;
    }
    asking = true;
    wanted = false;
    try {
      const answer = await fetch(location.href, { headers: { Accept: "text/html" }, cache: "no-store" });
      if (answer.redirected) {
        location.reload();
        return;
      }
      const text = await answer.text();
      const next = new DOMParser().parseFromString(text, "text/html").getElementById("main");
      if (next && !occupied()) {
        takeOver(next);
      }
      say(answer.ok ? "live" : "not live", answer.ok ? "ok" : "bad");
    } catch (error) {
      say("no answer from the service", "bad");
    } finally {
      asking = false;
      last = Date.now();
      if (wanted) {
        soon();
      }
    }
  }

  function soon() {
    if (!timer) {
      timer = setTimeout(() => {
        timer = 0;
        draw();
      }, Math.max(50, last + rest - Date.now()));
    }
  }

  const events = new EventSource("/events?only=changed");
  events.addEventListener("changed", soon);
  events.addEventListener("open", () => say("live", "ok"));
  events.addEventListener("error", () => say("connecting", "warn"));
  setInterval(() => {
    if (wanted || Date.now() - last > seconds * 1000) {
      soon();
    }
  }, 1000);
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden) {
      soon();
    }
  });
})();
