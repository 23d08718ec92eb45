
// -- a page that `byzantium watch` serves: it asks for new results ---------------------------------

// So many milliseconds after an answer the page asks again.
const PAUSE = 2000;
// So many running jobs are named.
const NAMED = 8;

function follow() {
  $("complete").hidden = true;
  root.dataset.connected = "";
  showProgress();
  setTimeout(ask, PAUSE);
}

async function ask() {
  try {
    const answer = await fetch("data", { cache: "no-store", headers: { "If-None-Match": report.live.version } });
    if (answer.ok) {
      update(await answer.json());
    } else if (answer.status !== 304) {
      throw new Error(String(answer.status));
    }
    root.dataset.connected = "";
  } catch {
    delete root.dataset.connected;
  }
  showProgress();
  setTimeout(ask, PAUSE);
}

/** Show new results; what the reader has chosen, opened, scrolled to and focused stays. */
function update(values) {
  adopt(values);
  const place = reading();
  head();
  fillFilters();
  artifacts();
  refresh();
  if (viewed) fillViewer();
  place();
}

/** Where the reader is; call the result to bring the reader there again. */
function reading() {
  const key = (element) => element && ["href", "data-identity", "data-column", "value", "name"]
    .map((name) => element.getAttribute(name)).join(" ");
  const [focused, within] = [document.activeElement, document.activeElement?.closest("[id]")?.id];
  const boxes = new Map([...document.querySelectorAll(".box")].map((box) => [box.ariaLabel, box.scrollLeft]));
  const open = [...document.querySelectorAll("#artifacts details")].map((one) => one.open);
  const top = scrollY;
  return () => {
    [...document.querySelectorAll("#artifacts details")].forEach((one, k) => { one.open = open[k] ?? one.open; });
    for (const box of document.querySelectorAll(".box")) box.scrollLeft = boxes.get(box.ariaLabel) ?? 0;
    if (focused && !focused.isConnected && $(within)) {
      [...$(within).querySelectorAll("a, input, button, [tabindex]")]
        .find((one) => key(one) === key(focused))?.focus({ preventScroll: true });
    }
    scrollTo({ top, behavior: "instant" });
  };
}

function showProgress() {
  const { done, total, share, running } = report.live;
  const state = !("connected" in root.dataset) ? `The server has stopped; these are the results of ${report.made}.`
    : running.length ? `${count(running.length, "job")} running.` : "Nothing is running.";
  $("live").hidden = false;
  $("live-text").textContent = `${done} of ${count(total, "job")} done. ${state}`;
  $("live-bar").value = share;
  const more = running.length - NAMED;
  $("live-running").replaceChildren(...running.slice(0, NAMED).map(({ name, round, rounds }) =>
    make("li", null, rounds && round ? `${name}: evaluated in round ${round} of ${rounds}` : name)),
  ...(more > 0 ? [make("li", null, `and ${more} more`)] : []));
}
