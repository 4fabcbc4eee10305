// The gateway's counters, once a second, and what follows from their differences: rates and percentiles.

const KEPT = 300;

export class LiveData {
  constructor() {
    this.samples = [];
    this.listeners = new Set();
    this.connected = false;
    this.source = null;
  }

  start() {
    if (this.source) return;
    this.source = new EventSource("/admin/api/live");
    this.source.addEventListener("snapshot", (event) => this.add(JSON.parse(event.data)));
    this.source.addEventListener("open", () => this.tell(true));
    this.source.addEventListener("error", () => {
      this.tell(false);
      if (this.source?.readyState !== EventSource.CLOSED) return;  // it tries again by itself
      this.stop();
      this.retry = setTimeout(() => this.start(), 5000);
    });
  }

  stop() {
    clearTimeout(this.retry);
    this.source?.close();
    this.source = null;
    this.tell(false);
  }

  /** Calls `listener` with each sample, until what this returns is called. */
  listen(listener) {
    this.listeners.add(listener);
    if (this.latest) listener(this);
    return () => this.listeners.delete(listener);
  }

  get latest() {
    return this.samples.at(-1);
  }

  add(sample) {
    const before = this.latest;
    if (before && sample.at === before.at) return;  // who comes in between two samples is told the last one twice
    // Workers that were replaced begin to count anew.
    if (before && (sample.at <= before.at || total(sample.counters.requests) < total(before.counters.requests))) this.samples = [];
    this.samples.push(sample);
    if (this.samples.length > KEPT) this.samples.shift();
    this.connected = true;
    for (const listener of this.listeners) listener(this);
  }

  tell(connected) {
    this.connected = connected;
    for (const listener of this.listeners) listener(this);
  }

  /** The sample `seconds` before the one at `index`, or the first. */
  before(index, seconds) {
    const from = this.samples[index].at - seconds;
    let found = index;
    while (found > 0 && this.samples[found].at > from) found -= 1;
    return this.samples[found];
  }

  /** How fast a counter grew in the `seconds` before a sample: of those labels that `fits` accepts. */
  rate(name, fits = () => true, seconds = 10, index = this.samples.length - 1) {
    if (index < 1) return null;
    const now = this.samples[index];
    const then = this.before(index, seconds);
    const passed = now.at - then.at;
    if (passed <= 0) return null;
    return Math.max(0, total(now.counters[name], fits) - total(then.counters[name], fits)) / passed;
  }

  /** A percentile of what was observed in the `seconds` before a sample; null where there was nothing. */
  percentile(name, share, seconds = 60, index = this.samples.length - 1) {
    if (index < 1) return null;
    const now = this.samples[index].histograms[name];
    const then = this.before(index, seconds).histograms[name];
    const counts = now.counts.map((value, at) => value - (then.counts[at] || 0));
    const all = counts.reduce((sum, value) => sum + value, 0);
    if (all <= 0) return null;
    let wanted = share * all;
    for (let at = 0; at < counts.length; at += 1) {
      if (counts[at] >= wanted && counts[at] > 0) {
        const low = at ? now.bounds[at - 1] : 0;
        if (at >= now.bounds.length) return low;
        return low + (now.bounds[at] - low) * (wanted / counts[at]);
      }
      wanted -= counts[at];
    }
    return now.bounds.at(-1);
  }
}

export function total(counts, fits = () => true) {
  let sum = 0;
  for (const [labels, value] of Object.entries(counts || {})) if (fits(...labels.split("\t"))) sum += value;
  return sum;
}

/** As the objectives have it; a limit that refuses (429) does what it is there for. */
export const failed = (model, backend, status) => Number(status) >= 500;
export const limited = (model, backend, status) => status === "429";
export const answered = (model, backend, status) => Number(status) < 400;
