// The live stream: one EventSource for the whole tab.
//
// `live.on(type, fn)` hears an event of the server and returns what ends that. Three types are made here:
//   `state`  the connection is "open" or "lost" (also in `live.state`)
//   `lost`   events may have been missed (the server says so, the stream was broken, the server is another process): refetch what is shown
//   `boot`   the server was restarted (it says another boot id); `lost` follows
// While the tab is hidden for longer than 30 s the stream is closed, so that many tabs do not use up the browser's connections.

import { url } from './api.js'

const HIDDEN_MS = 30_000
const FIRST_WAIT_MS = 500
const LONGEST_WAIT_MS = 8_000

class Live {
  state = 'lost'
  boot = ''
  #source = null
  #listeners = new Map()
  #wait = FIRST_WAIT_MS
  #retry = 0
  #hidden = 0
  #wanted = false
  #greeted = false

  /** Hears events of a type; returns a function that ends it. */
  on(type, fn) {
    if (!this.#listeners.has(type)) {
      this.#listeners.set(type, new Set())
      this.#hear(type)
    }
    const held = this.#listeners.get(type)
    held.add(fn)
    return () => held.delete(fn)
  }

  start() {
    if (this.#wanted) return
    this.#wanted = true
    document.addEventListener('visibilitychange', this.#seen)
    addEventListener('online', this.now)
    this.#connect()
  }

  stop() {
    this.#wanted = false
    document.removeEventListener('visibilitychange', this.#seen)
    removeEventListener('online', this.now)
    this.#close()
    this.#become('lost')
  }

  /** Tries at once, instead of after the wait. */
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
    source.addEventListener('error', () => source === this.#source && this.#broken())
    for (const type of this.#listeners.keys()) this.#hear(type)
  }

  #hear(type) {
    if (type === 'state' || type === 'boot' || type === 'hello') return
    const source = this.#source
    source?.addEventListener(
      type,
      (event) => source === this.#source && this.#emit(type, event.data ? JSON.parse(event.data) : {}),
    )
  }

  #hello(told) {
    const again = this.#greeted
    const other = this.boot !== '' && told.boot !== this.boot
    this.boot = told.boot
    this.#greeted = true
    this.#wait = FIRST_WAIT_MS
    this.#become('open')
    if (other) this.#emit('boot', told)
    if (again) this.#emit('lost', {})
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

  #seen = () => {
    clearTimeout(this.#hidden)
    if (document.hidden) this.#hidden = setTimeout(() => this.#close(), HIDDEN_MS)
    else if (this.#source === null) this.now()
  }

  #become(state) {
    if (state === this.state) return
    this.state = state
    this.#emit('state', state)
  }

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
