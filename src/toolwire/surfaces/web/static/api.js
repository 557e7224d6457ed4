// Talking to the server: JSON in and out, with the session's token on whatever changes something.
//
// A failure is an `ApiError` with the server's own words. Status 0: the server did not answer at all. On 401 whoever called `onSignedOut` is told.

const ROOT = '/ui/api'

let csrf = ''
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

/** The address of a path, for links and downloads. */
export const url = (path) => ROOT + path

/** A path with those parameters that have a value. */
export function query(path, params) {
  const given = Object.entries(params).filter(([, value]) => value !== null && value !== undefined && value !== '')
  return given.length ? `${path}?${new URLSearchParams(given)}` : path
}

export function onSignedOut(fn) {
  signedOut = fn
}

/** The session as the server tells it; keeps its token for later calls. */
export async function session() {
  const told = await call('GET', '/session', undefined, { quiet: true })
  csrf = told.csrf
  return told
}

async function call(method, path, body, { signal, quiet = false, again = true } = {}) {
  const headers = { accept: 'application/json' }
  if (method !== 'GET') headers['x-toolwire-csrf'] = csrf
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
  if (error.status === 403 && method !== 'GET' && again && (await renewed())) return call(method, path, body, { signal, quiet, again: false })
  throw error
}

/** Whether the token is another by now, as after a restart of the server. */
async function renewed() {
  const before = csrf
  try {
    await session()
  } catch {
    return false
  }
  return csrf !== before
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
  return new ApiError(response.status, told.message || `The server answered ${response.status} ${response.statusText}`.trim() + '.', told)
}
