// How requests of the page are answered: by the server. A published gallery has another module of this name.

/** The address that routes of the API are below. */
export const ROOT = new URL('../../v1/', import.meta.url);

/** The response to a request. @param {string} url @param {RequestInit} request */
export const send = (url, request) => fetch(url, {credentials: 'same-origin', ...request});

/** The address at which the browser loads an image of the API. @param {string} url */
export const locate = url => url;
