// Small helpers around the document.  Nothing here, or anywhere else on the page, parses text as HTML.

/** The element with an id, which the page must have. */
export function byId(id) {
  const element = document.getElementById(id);
  if (!element) throw new Error(`the page has no element #${id}`);
  return element;
}

/** A new element with a class, and text or elements inside. */
export function make(tag, className = "", ...children) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  element.append(...children);
  return element;
}

/** The first element of a template, copied. */
export function fromTemplate(id) {
  return byId(id).content.firstElementChild.cloneNode(true);
}

/** Put a sentence into an element and show it, or hide the element if there is none. */
export function tell(element, sentence) {
  element.textContent = sentence ?? "";
  element.hidden = !sentence;
}

/** Copy a text; pages served over plain HTTP from another machine have no clipboard of their own. */
export async function copyText(text) {
  if (navigator.clipboard) {
    await navigator.clipboard.writeText(text);
    return;
  }
  const area = make("textarea", "unseen");
  area.value = text;
  const focused = document.activeElement;
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
  focused?.focus();
}
