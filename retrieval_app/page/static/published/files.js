// The files of a published gallery: what its page says of them, and their content.

/** What went wrong, with the status that a server would give. */
export class Refusal extends Error {
  constructor(message, status = 422, code = 'invalid') {
    super(message);
    Object.assign(this, {status, code});
  }
}

/** @type {any} */
export const site = JSON.parse(document.getElementById('site')?.textContent ?? '{}');

/** The address of a file. @param {string} path */
export const urlOf = path => new URL(path, document.baseURI).href;

/** @param {string} path */
export async function readBytes(path) {
  const answer = await fetch(urlOf(path)).catch(() => null);
  if (answer?.ok) return answer.arrayBuffer();
  const why = answer ? `status ${answer.status}` : 'no answer';
  throw new Refusal(`A file of this gallery could not be loaded: ${why}. Reload the page.`, 502, 'offline');
}

/** The content of a compressed file. @param {string} path */
export async function unpack(path) {
  const packed = new Blob([await readBytes(path)]).stream();
  return new Response(packed.pipeThrough(new DecompressionStream('gzip')));
}

/** @param {string} path @returns {Promise<any>} */
export const readJson = async path => (await unpack(path)).json();
