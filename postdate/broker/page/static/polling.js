// Looks again and again while a view is shown and its tab is in front.

const WAIT_FACTOR = 5;

/** Call `look` now and every `everyMs`, less often where it takes long; a failure is shown, and the call tried again. */
export function poll(view, everyMs, look) {
  let timer = null;
  async function once() {
    clearTimeout(timer);
    const started = performance.now();
    if (!document.hidden) {
      try {
        await look();
        if (!view.signal.aborted) view.showProblem(null, once);
      } catch (error) {
        if (!view.signal.aborted) view.showProblem(error, once);
        if (error.status === 401) return;
      }
    }
    // A service that is busy is not asked more for being slow.
    const wait = Math.max(everyMs, WAIT_FACTOR * (performance.now() - started));
    if (!view.signal.aborted) timer = setTimeout(once, wait);
  }
  view.signal.addEventListener("abort", () => clearTimeout(timer));
  once();
  return once;
}
