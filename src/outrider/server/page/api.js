// Requests to the server, and what to tell when one fails.

import { events } from "./sse.js";
import { forTab } from "./store.js";

/** The window's event after the key has changed. */
export const KEY_CHANGED = "outrider-key";

const key = forTab("key");

/** Whether a key is known. */
export const hasKey = () => key.read() !== null;
/** Remember a key for this tab; an empty one is forgotten. */
export function setKey(text) {
  key.write(text.trim());
  window.dispatchEvent(new Event(KEY_CHANGED));
}

/** An answer of the server that is an error. */
export class ServerError extends Error {
  constructor(status, body, retryAfter = null) {
    super(body?.error?.message || `The server answered ${status || "with an error"}.`);
    this.status = status;
    this.param = body?.error?.param ?? null;
    this.retryAfter = retryAfter;
  }
}

/** A stream that ended before the answer did. */
export class CutError extends Error {}

async function open(path, options) {
  const secret = key.read();
  const headers = { ...options.headers, ...(secret ? { Authorization: `Bearer ${secret}` } : {}) };
  const response = await fetch(path, { ...options, headers, cache: "no-store" });
  if (response.ok) return response;
  const body = await response.json().catch(() => null);
  throw new ServerError(response.status, body, secondsOf(response.headers.get("Retry-After")));
}

/** Seconds of a Retry-After header, which holds a number or a date; null if it holds neither. */
export function secondsOf(header) {
  if (header === null || header.trim() === "") return null;
  const seconds = Number.isNaN(Number(header)) ? (Date.parse(header) - Date.now()) / 1000 : Number(header);
  return Number.isFinite(seconds) ? Math.max(0, Math.ceil(seconds)) : null;
}

/** The JSON of a path. */
export async function getJson(path, milliseconds = 5000) {
  const response = await open(path, { signal: AbortSignal.timeout(milliseconds) });
  return response.json();
}

/**
 * The chunks of a streamed chat answer.
 *
 * @param {object} body the request
 * @param {AbortSignal} signal ends it
 * @yields {object} one chunk
 * @throws {ServerError} the server refused the request, or failed while it streamed
 * @throws {CutError} the connection ended before the answer did
 */
export async function* streamChat(body, signal) {
  const response = await open("v1/chat/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
    signal,
  });
  try {
    for await (const data of events(response.body)) {
      if (data === "[DONE]") return;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new ServerError(0, chunk);
      yield chunk;
    }
  } catch (failure) {
    if (failure instanceof ServerError || failure.name === "AbortError") throw failure;
  }
  throw new CutError("The connection ended before the answer did.");
}

/** What to tell of a failure: one or two sentences. */
export function explain(failure) {
  if (failure instanceof ServerError) return explainStatus(failure);
  if (failure instanceof CutError) return failure.message;
  if (failure.name === "TypeError" || failure.name === "TimeoutError") {
    return "The server does not answer. Check that it still runs and that this device is online.";
  }
  return `The page failed: ${failure.message}`;
}

const CAUSES = {
  401: "The server asks for an API key.",
  403: "The API key may not do this.",
  429: "The server is busy.",
  503: "The server takes no new requests: it is shutting down or not ready yet.",
};

function explainStatus(failure) {
  const wait = failure.retryAfter === null ? "" : `Try again in ${failure.retryAfter} s.`;
  return [CAUSES[failure.status], failure.message, wait].filter(Boolean).join(" ");
}
