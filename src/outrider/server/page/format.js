// Numbers and times as people read them.

const formats = [1, 2, 3].map((digits) => new Intl.NumberFormat("en", { maximumSignificantDigits: digits }));
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });

/** A number with at most so many significant digits; thousands become 12.3K. */
export function number(value, digits = 3) {
  return Math.abs(value) >= 10000 ? compact.format(value) : formats[digits - 1].format(value);
}

/** A whole number with its noun: 1 round, 9 rounds. */
export function count(value, noun) {
  return `${value.toLocaleString("en")} ${noun}${value === 1 ? "" : "s"}`;
}

/** A share from 0 to 1 as per cent. */
export function percent(share) {
  const value = 100 * share;
  return `${value > 0 && value < 1 ? "<1" : Math.round(value)} %`;
}

/** Seconds in the unit that reads best. */
export function duration(seconds) {
  if (seconds < 0.0995) return `${number(seconds * 1000, 2)} ms`;
  return seconds < 99.5 ? `${seconds.toFixed(seconds < 9.95 ? 2 : 1)} s` : `${Math.round(seconds)} s`;
}
