// The live stream: one EventSource for the whole tab.
//
// `live.on(type, fn)` listens to an event of the server and returns a function that stops listening. Three
// types of events do not come from the server as they are:
//   `state`  the connection is "open" or "lost" (also in `live.state`)
//   `lost`   events may have been missed (the server says so, or the stream broke): load again what is shown
//   `boot`   the server was restarted (it reports another boot id); `lost` follows
// The stream is closed when the tab has been hidden for 30 s, so that many tabs do not use up the browser's
// connections.

/** @import { LiveEvents } from '../types' */

import { url } from './api.js'

const HIDDEN_MS = 30_000
const FIRST_WAIT_MS = 500
const LONGEST_WAIT_MS = 8_000

export class Live {
  /** @type {'open' | 'lost'} */
  state = 'lost'
  boot = ''
  /** @type {EventSource | null} */
  #source = null
  /** @type {Map<string, Set<(data: unknown) => void>>} */
  #listeners = new Map()
  #wait = FIRST_WAIT_MS
  #retry = 0
  #hidden = 0
  #wanted = false
  #connectedBefore = false

  /**
   * @template {keyof LiveEvents} Type
   * @param {Type} type
   * @param {(data: LiveEvents[Type]) => unknown} fn
   * @returns {() => void} stops listening
   */
  on(type, fn) {
    let listeners = this.#listeners.get(type)
    if (!listeners) {
      listeners = new Set()
      this.#listeners.set(type, listeners)
      this.#subscribe(type)
    }
    /** @param {unknown} data */
    const listener = (data) => fn(/** @type {LiveEvents[Type]} */ (data))
    listeners.add(listener)
    return () => listeners.delete(listener)
  }

  start() {
    if (this.#wanted) return
    this.#wanted = true
    document.addEventListener('visibilitychange', this.#visibilityChanged)
    addEventListener('online', this.now)
    this.#connect()
  }

  stop() {
    this.#wanted = false
    document.removeEventListener('visibilitychange', this.#visibilityChanged)
    removeEventListener('online', this.now)
    this.#close()
    this.#become('lost')
  }

  /** Connects now instead of after the wait. */
  now = () => {
    if (!this.#wanted || this.#source?.readyState === EventSource.OPEN) return
    this.#wait = FIRST_WAIT_MS
    this.#connect()
  }

  #connect() {
    this.#close()
    const source = new EventSource(url('/events'))
    this.#source = source
    source.addEventListener('hello', (event) => this.#hello(JSON.parse(event.data)))
    source.addEventListener('error', () => {
      if (source === this.#source) this.#broken()
    })
    for (const type of this.#listeners.keys()) this.#subscribe(type)
  }

  /** @param {string} type */
  #subscribe(type) {
    if (type === 'state' || type === 'boot') return
    const source = this.#source
    source?.addEventListener(type, (event) => {
      if (source === this.#source) this.#emit(type, event.data ? JSON.parse(event.data) : {})
    })
  }

  /** @param {LiveEvents['boot']} hello */
  #hello(hello) {
    const reconnected = this.#connectedBefore
    const restarted = this.boot !== '' && hello.boot !== this.boot
    this.boot = hello.boot
    this.#connectedBefore = true
    this.#wait = FIRST_WAIT_MS
    this.#become('open')
    if (restarted) this.#emit('boot', hello)
    if (reconnected) this.#emit('lost', {})
  }

  #broken() {
    this.#close()
    this.#become('lost')
    if (!this.#wanted) return
    this.#retry = setTimeout(() => this.#connect(), this.#wait * (0.7 + 0.6 * Math.random()))
    this.#wait = Math.min(this.#wait * 1.7, LONGEST_WAIT_MS)
  }

  #close() {
    clearTimeout(this.#retry)
    this.#source?.close()
    this.#source = null
  }

  #visibilityChanged = () => {
    clearTimeout(this.#hidden)
    if (document.hidden) this.#hidden = setTimeout(() => this.#close(), HIDDEN_MS)
    else if (this.#source === null) this.now()
  }

  /** @param {'open' | 'lost'} state */
  #become(state) {
    if (state === this.state) return
    this.state = state
    this.#emit('state', state)
  }

  /** @param {string} type @param {unknown} data */
  #emit(type, data) {
    for (const fn of [...(this.#listeners.get(type) ?? [])]) {
      try {
        fn(data)
      } catch (error) {
        reportError(error)
      }
    }
  }
}

export const live = new Live()
