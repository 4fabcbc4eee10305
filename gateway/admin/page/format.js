// Numbers and times, as they are read.

const dash = "–";
const missing = (value) => value === null || value === undefined || Number.isNaN(value);

export function count(value) {
  if (missing(value)) return dash;
  const size = Math.abs(value);
  if (size >= 1e9) return `${trim(value / 1e9)} G`;
  if (size >= 1e6) return `${trim(value / 1e6)} M`;
  if (size >= 1e4) return `${trim(value / 1e3)} k`;
  return value.toLocaleString("en", { maximumFractionDigits: 0 });
}

export function bytes(value) {
  if (missing(value)) return dash;
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  for (; value >= 1024 && at < units.length - 1; at += 1) value /= 1024;
  return `${at ? trim(value) : value.toFixed(0)} ${units[at]}`;
}

export function rate(value) {
  if (missing(value)) return dash;
  return value >= 1000 ? count(value) : value >= 100 ? value.toFixed(0) : value.toFixed(1);
}

export function seconds(value) {
  if (missing(value)) return dash;
  if (value === 0) return "0";
  if (value < 0.001) return `${(value * 1e6).toFixed(0)} µs`;
  if (value < 0.01) return `${(value * 1e3).toFixed(1)} ms`;
  if (value < 1) return `${(value * 1e3).toFixed(0)} ms`;
  if (value < 120) return `${trim(value)} s`;
  if (value < 7200) return `${(value / 60).toFixed(0)} min`;
  return value < 172800 ? `${(value / 3600).toFixed(0)} h` : `${(value / 86400).toFixed(0)} days`;
}

export function dollars(value) {
  if (missing(value)) return dash;
  if (value === 0) return "$0";
  const size = Math.abs(value);
  const digits = size >= 1000 ? 0 : size >= 0.1 ? 2 : size >= 0.001 ? 4 : 6;
  return `$${value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits })}`;
}

export function percent(share) {
  if (missing(share)) return dash;
  return share > 0 && share < 0.001 ? "<0.1%" : `${(share * 100).toFixed(share < 0.1 && share > 0 ? 1 : 0)}%`;
}

export const clock = (unix) => new Date(unix * 1000).toLocaleTimeString("en-GB");

export function moment(unix) {
  const at = new Date(unix * 1000);
  const day = at.toLocaleDateString("en-CA");
  return day === new Date().toLocaleDateString("en-CA") ? clock(unix) : `${day} ${clock(unix)}`;
}

function trim(value) {
  return Math.abs(value) >= 100 ? value.toFixed(0) : Math.abs(value) >= 10 ? value.toFixed(1) : value.toFixed(2);
}
