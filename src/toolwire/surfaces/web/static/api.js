// Talking to the server: JSON in and out, with the page key on everything: the cookie alone opens nothing.
//
// A failure is an `ApiError` with the server's own words. Status 0: the server did not answer at all. On 401 whoever called `onSignedOut` is told.

const ROOT = '/ui/api'

const KEPT = 'toolwire-page'

let pageKey = ''
let signedOut = () => {}

export class ApiError extends Error {
  constructor(status, message, details = {}) {
    super(message)
    this.name = 'ApiError'
    this.status = status
    this.param = details.param ?? null
    this.code = details.code ?? null
  }
}

export const get = (path, options) => call('GET', path, undefined, options)
export const post = (path, body = {}, options) => call('POST', path, body, options)
export const put = (path, body = {}, options) => call('PUT', path, body, options)
export const patch = (path, body = {}, options) => call('PATCH', path, body, options)
export const del = (path, options) => call('DELETE', path, undefined, options)

/** The address of a path, for what the browser asks by itself: downloads, the live stream. */
export const url = (path) => ROOT + query(path, { page: pageKey })

/** Keeps the page key of a session that begins. */
export function keep(key) {
  pageKey = key
  try {
    localStorage.setItem(KEPT, key)
  } catch {
    // a browser that keeps nothing: the session lasts as long as this tab
  }
}

/** A path with those parameters that have a value. */
export function query(path, params) {
  const given = Object.entries(params).filter(
    ([, value]) => value !== null && value !== undefined && value !== '',
  )
  return given.length ? `${path}?${new URLSearchParams(given)}` : path
}

export function onSignedOut(fn) {
  signedOut = fn
}

/** The session as the server tells it. */
export const session = () => call('GET', '/session', undefined, { quiet: true })

/** The key that the one-time link brought, behind the address; it does not stay there. */
function given() {
  const found = /^#page=([0-9a-f]+)$/.exec(location.hash)
  if (!found) return ''
  history.replaceState(history.state, '', location.pathname + location.search)
  keep(found[1])
  return found[1]
}

function kept() {
  try {
    return localStorage.getItem(KEPT) ?? ''
  } catch {
    return ''
  }
}

async function call(method, path, body, { signal, quiet = false } = {}) {
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
    if (error.name === 'AbortError') throw error
    throw new ApiError(0, 'The server does not answer. Is toolwire serve still running?')
  }
  if (response.ok) return read(response)
  const error = await failure(response)
  if (error.status === 401 && !quiet) signedOut()
  throw error
}

async function read(response) {
  const written = await response.text()
  if (!written) return {}
  if (!(response.headers.get('content-type') ?? '').includes('json')) return written
  return JSON.parse(written)
}

async function failure(response) {
  let told = {}
  try {
    told = (await response.json()).error ?? {}
  } catch {
    // no JSON: a proxy, or a server that fell over
  }
  return new ApiError(
    response.status,
    told.message || `The server answered ${response.status} ${response.statusText}`.trim() + '.',
    told,
  )
}

pageKey = given() || kept()
