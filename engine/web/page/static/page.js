// Draws the page anew when the fleet has changed: the server sends what changed as events, the page asks for itself and
// takes over the new main part. The header says how the feed stands, and how old a page is that is not live. Without this
// script the page refreshes itself every few seconds.
"use strict";

const AGAIN_S = 3; // between two drawings while the feed is away

(function () {
  const seconds = Number(document.body.dataset.refresh);
  const rest = Number(document.body.dataset.rest) * 1000; // between two drawings
  const live = document.getElementById("live");
  const liveAge = document.getElementById("live-age");
  let asking = false;
  let wanted = false;
  let last = Date.now();
  let timer = 0;
  let feed = ""; // how the feed stands, as it says itself; empty: the line to the service is not there
  let served = true; // whether the service answered at all
  let shownAt = performance.now(); // since when what is shown is there

  function say(text, tone) {
    if (live && live.textContent !== text) {
      live.textContent = text;
      live.className = tone;
    }
  }

  function troubled() {
    return document.getElementById("main").dataset.trouble !== undefined;
  }

  // The page is live while both say so: the feed, and what was drawn last.
  function tell() {
    if (!served) {
      say("no answer from the service", "bad");
    } else if (troubled() || feed === "lost") {
      say("NOT LIVE", "bad");
    } else if (feed === "live") {
      say("live", "ok");
    } else {
      say("connecting", "warn");
    }
    grow();
  }

  // As engine/display/units.py writes an age.
  function words(seconds) {
    const total = Math.max(0, Math.floor(seconds));
    const two = (number) => String(number).padStart(2, "0");
    if (total < 60) {
      return `${total}s`;
    }
    if (total < 3600) {
      return `${Math.floor(total / 60)}m${two(total % 60)}`;
    }
    return total < 172800 ? `${Math.floor(total / 3600)}h${two(Math.floor((total % 3600) / 60))}` : `${Math.floor(total / 86400)}d`;
  }

  // What is not live grows older while somebody looks at it.
  function grow() {
    const main = document.getElementById("main");
    const lived = (performance.now() - shownAt) / 1000;
    const text = main.dataset.age === undefined ? "" : words(Number(main.dataset.age) + lived);
    main.querySelectorAll(".old").forEach((e) => {
      e.textContent = text;
    });
    const stale = !served || troubled() || feed === "lost";
    if (liveAge) {
      liveAge.textContent = stale && text ? `${text} old` : "";
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
    shownAt = performance.now();
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
      served = next !== null;
    } catch (error) {
      served = false;
    } finally {
      tell();
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

  setInterval(grow, 1000);
  if (!seconds) {
    return;
  }
  const events = new EventSource("/events?only=changed,state");
  events.addEventListener("changed", soon);
  events.addEventListener("state", (event) => {
    feed = JSON.parse(event.data).state;
    served = true;
    tell();
  });
  events.addEventListener("error", () => {
    feed = "";
    tell();
  });
  setInterval(() => {
    const every = feed === "live" ? seconds : Math.min(seconds, AGAIN_S);
    if (wanted || Date.now() - last > every * 1000) {
      soon();
    }
  }, 1000);
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden) {
      soon();
    }
  });
})();
