// Values that this browser keeps from one visit to the next; nothing where its storage is off.

/** What was kept by that name; null where nothing is. @param {string} name */
export function readKept(name, {session = false} = {}) {
  try {
    return (session ? sessionStorage : localStorage).getItem(name);
  } catch {
    return null; // browsers whose storage is off throw at the first access
  }
}

/** Keep it, if the browser does, or only until the tab is closed. @param {string} name @param {string} value */
export function keep(name, value, {session = false} = {}) {
  try {
    (session ? sessionStorage : localStorage).setItem(name, value);
  } catch {
    // it holds for as long as the page is open
  }
}
