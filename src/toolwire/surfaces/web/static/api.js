// Calls the server's API for the pages, with JSON. Every request contains the page key, because the server
// does not accept the cookie alone.
//
// A failure is an `ApiError` with the server's message. Status 0 means that the server did not answer at all.
// Status 401 also calls the function that was given to `onSignedOut`. A decision that needs the approval code
// calls the function that was given to `onCodeNeeded`, and is sent again if the person enters the code.

/** @import { CallOptions, GetReply, PostReply, PutReply } from '../types' */

import { visible } from './invisible.js'

const ROOT = '/ui/api'
const STORED = 'toolwire-page'

let pageKey = ''
let signedOut = () => {}
/** @type {(message: string) => Promise<boolean | null>} */
let codeNeeded = async () => false

export class ApiError extends Error {
  /** @param {number} status @param {string} message @param {string} [code] */
  constructor(status, message, code = '') {
    super(message)
    this.name = 'ApiError'
    this.status = status
    this.code = code
  }
}

/** The HTTP status of a failed call, or null for any other error. @param {unknown} error */
export const statusOf = (error) => (error instanceof ApiError ? error.status : null)

/** The message of an error, for the page: it may quote arguments or names. @param {unknown} error */
export const messageOf = (error) => visible(error instanceof Error ? error.message : error)

/** Whether a call failed because it was aborted. @param {unknown} error */
export const isAbort = (error) => error instanceof DOMException && error.name === 'AbortError'

/**
 * @template {string} Path
 * @param {Path} path
 * @param {CallOptions} [options]
 * @returns {Promise<GetReply<Path>>}
 */
export const get = (path, options) => call('GET', path, undefined, options)

/**
 * @template {string} Path
 * @param {Path} path
 * @param {object} [body]
 * @param {CallOptions} [options]
 * @returns {Promise<PostReply<Path>>}
 */
export const post = (path, body = {}, options = {}) => call('POST', path, body, options)

/**
 * @template {string} Path
 * @param {Path} path
 * @param {object} body
 * @returns {Promise<PutReply<Path>>}
 */
export const put = (path, body) => call('PUT', path, body)

/** @param {string} path @param {object} body @returns {Promise<unknown>} */
export const patch = (path, body) => call('PATCH', path, body)

/** @param {string} path @returns {Promise<unknown>} */
export const del = (path) => call('DELETE', path)

/**
 * The address of a path that the browser itself requests: a download, or the live stream.
 *
 * @param {string} path
 */
export const url = (path) => ROOT + query(path, { page: pageKey })

/** Stores the page key of a new session. @param {string} key */
export function keep(key) {
  pageKey = key
  try {
    localStorage.setItem(STORED, key)
  } catch {
    // Without storage the session lasts as long as this tab.
  }
}

/**
 * A path with the parameters that have a value. Parameters without a value are left out.
 *
 * @template {string} Path
 * @param {Path} path
 * @param {{ [name: string]: string | number | null | undefined }} params
 * @returns {Path | `${Path}?${string}`}
 */
export function query(path, params) {
  const search = new URLSearchParams()
  for (const [name, value] of Object.entries(params)) {
    if (value !== null && value !== undefined && value !== '') search.set(name, String(value))
  }
  return search.size ? `${path}?${search}` : path
}

/** @param {() => void} fn */
export function onSignedOut(fn) {
  signedOut = fn
}

/** @param {(message: string) => Promise<boolean | null>} fn resolves to whether the code was entered */
export function onCodeNeeded(fn) {
  codeNeeded = fn
}

export const session = () => get('/session', { quiet: true })

/** Removes the page key that a one-time link put into the address, and returns it; '' without one. */
function keyFromLink() {
  const found = /^#page=([0-9a-f]+)$/.exec(location.hash)
  if (!found) return ''
  history.replaceState(history.state, '', location.pathname + location.search)
  keep(found[1])
  return found[1]
}

function storedKey() {
  try {
    return localStorage.getItem(STORED) ?? ''
  } catch {
    return ''
  }
}

/**
 * @param {string} method
 * @param {string} path
 * @param {object} [body]
 * @param {CallOptions} [options]
 */
async function call(method, path, body, { signal, quiet = false } = {}) {
  /** @type {{ [name: string]: string }} */
  const headers = { accept: 'application/json', 'x-toolwire-page': pageKey }
  if (body !== undefined) headers['content-type'] = 'application/json'
  let response
  try {
    response = await fetch(ROOT + path, {
      method,
      headers,
      signal,
      credentials: 'same-origin',
      cache: 'no-store',
      body: body === undefined ? undefined : JSON.stringify(body),
    })
  } catch (error) {
    if (isAbort(error)) throw error
    throw new ApiError(0, 'The server does not answer. Is “toolwire serve” still running?')
  }
  if (response.ok) return read(response)
  const error = await failure(response)
  if (error.status === 401 && !quiet) signedOut()
  if (error.code === 'approval_code' && (await codeNeeded(error.message)))
    return call(method, path, body, { signal, quiet })
  throw error
}

/** @param {Response} response */
async function read(response) {
  const body = await response.text()
  return body ? JSON.parse(body) : {}
}

/** @param {Response} response */
async function failure(response) {
  let message = ''
  let code = ''
  try {
    const { error } = await response.json()
    message = error?.message ?? ''
    code = error?.code ?? ''
  } catch {
    // Not JSON: the answer of a proxy, or of a server that crashed.
  }
  const fallback = `The server answered ${response.status} ${response.statusText}`.trim()
  return new ApiError(response.status, message || `${fallback}.`, code)
}

pageKey = keyFromLink() || storedKey()
