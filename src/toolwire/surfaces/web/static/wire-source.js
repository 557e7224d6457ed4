// The rows of a turn (from the backend, events, or to the client), loaded in pages when they are needed.
//
// A page is loaded once. The last page of a running turn is loaded again when there are more rows.

/** @import { Row } from '../types' */

export const PAGE = 1000

export class RowSource {
  #load
  /** @type {Map<number, Row[]>} */
  #pages = new Map()
  /** @type {Map<number, Promise<Row[]>>} */
  #loading = new Map()
  /** @type {Set<() => void>} */
  #listeners = new Set()
  /** @type {unknown} why the last page could not be loaded, or null */
  error = null

  /**
   * @param {(from: number, count: number) => Promise<{ rows: Row[], total: number }>} load
   * @param {number} total
   */
  constructor(load, total) {
    this.#load = load
    this.total = total
  }

  /**
   * Calls `fn` whenever rows were loaded or added. Returns a function that ends these calls.
   *
   * @param {() => void} fn
   */
  onchange(fn) {
    this.#listeners.add(fn)
    return () => this.#listeners.delete(fn)
  }

  /** The row, or null if it is not loaded. @param {number} index */
  at(index) {
    return this.#pages.get(Math.floor(index / PAGE))?.[index % PAGE] ?? null
  }

  /** Loads the pages with these rows. @param {number} first @param {number} last */
  want(first, last) {
    let page = Math.floor(Math.max(0, first) / PAGE)
    for (; page * PAGE <= last && page * PAGE < this.total; page += 1) this.page(page).catch(() => {})
  }

  /** The rows of one page. @param {number} number */
  async page(number) {
    const rows = this.#pages.get(number)
    if (rows && rows.length >= Math.min(PAGE, this.total - number * PAGE)) return rows
    let loading = this.#loading.get(number)
    if (!loading) {
      loading = this.#fetch(number).finally(() => this.#loading.delete(number))
      this.#loading.set(number, loading)
    }
    return loading
  }

  /** @param {number} number */
  async #fetch(number) {
    try {
      const { rows, total } = await this.#load(number * PAGE, PAGE)
      this.#pages.set(number, rows)
      this.total = Math.max(this.total, total)
      this.error = null
      return rows
    } catch (error) {
      this.error = error
      throw error
    } finally {
      this.#notify()
    }
  }

  /** The turn has more rows now. @param {number} total */
  grow(total) {
    if (total <= this.total) return
    this.total = total
    this.#notify()
  }

  /**
   * All rows in order, page by page, each with the index of its first row. If there are more pages than
   * `most`, some are left out at regular distances.
   *
   * @param {number} [most]
   * @returns {AsyncGenerator<[number, Row[]]>}
   */
  async *all(most = Number.POSITIVE_INFINITY) {
    const pages = Math.ceil(this.total / PAGE)
    const step = Math.max(1, Math.ceil(pages / most))
    for (let number = 0; number * PAGE < this.total; number += step)
      yield [number * PAGE, await this.page(number)]
  }

  #notify() {
    for (const fn of this.#listeners) fn()
  }
}
