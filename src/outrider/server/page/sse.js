// Server-sent events over fetch: EventSource cannot send a body or a key.

const LINE_END = /\r\n|\n|\r(?!$)/; // a carriage return at the very end may be half of a line end

/**
 * The data of each event of a stream, as it arrives.
 *
 * @param {ReadableStream<Uint8Array>} stream
 * @yields {string} the data lines of one event, joined
 */
export async function* events(stream) {
  const reader = stream.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  let data = [];
  try {
    for (;;) {
      const { done, value } = await reader.read();
      rest += done ? decoder.decode() : decoder.decode(value, { stream: true });
      const lines = rest.split(LINE_END);
      rest = done ? "" : lines.pop();
      for (const line of lines) {
        if (line.startsWith("data:")) data.push(line.slice(line[5] === " " ? 6 : 5));
        if (line === "" && data.length) {
          yield data.join("\n");
          data = [];
        }
      }
      if (done) return; // an event without its empty line was cut off: it does not count
    }
  } finally {
    reader.cancel().catch(() => {}); // whoever stops reading early ends the request
  }
}
