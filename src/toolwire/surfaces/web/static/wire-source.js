// The rows of a turn (frames, events or wire), loaded by pages when somebody looks at them.
//
// A row is [milliseconds since the request, label, text]. A page is asked for once; the last page of a running turn again when more rows came.

export const PAGE = 1000

export class RowSource {
  #load
  #pages = new Map()
  #asked = new Map()
  #changed = new Set()
  error = null

  /** `load(from, count)` answers `{rows, total}`. */
  constructor(load, total = 0) {
    this.#load = load
    this.total = total
  }

  /** Tells when rows came in, or there are more of them; returns what ends that. */
  onchange(fn) {
    this.#changed.add(fn)
    return () => this.#changed.delete(fn)
  }

  /** The row, or null while it is not here. */
  at(index) {
    return this.#pages.get(Math.floor(index / PAGE))?.[index % PAGE] ?? null
  }

  /** Asks for the pages that hold these rows. */
  want(first, last) {
    for (
      let page = Math.floor(Math.max(0, first) / PAGE);
      page * PAGE <= last && page * PAGE < this.total;
      page += 1
    )
      this.page(page).catch(() => {})
  }

  /** One page's rows. */
  async page(number) {
    const held = this.#pages.get(number)
    if (held && held.length >= Math.min(PAGE, this.total - number * PAGE)) return held
    if (!this.#asked.has(number))
      this.#asked.set(
        number,
        this.#fetch(number).finally(() => this.#asked.delete(number)),
      )
    return this.#asked.get(number)
  }

  async #fetch(number) {
    try {
      const told = await this.#load(number * PAGE, PAGE)
      this.#pages.set(number, told.rows)
      this.total = Math.max(this.total, told.total ?? 0)
      this.error = null
      return told.rows
    } catch (error) {
      this.error = error
      throw error
    } finally {
      this.#tell()
    }
  }

  /** There are so many rows by now. */
  grow(total) {
    if (total <= this.total) return
    this.total = total
    this.#tell()
  }

  /** All rows in order, page by page: yields [first index, rows]. Of a very long list only every so manieth page, where `most` pages are allowed. */
  async *all(most = Infinity) {
    const pages = Math.ceil(this.total / PAGE)
    const step = Math.max(1, Math.ceil(pages / most))
    for (let number = 0; number * PAGE < this.total; number += step)
      yield [number * PAGE, await this.page(number)]
  }

  #tell() {
    for (const fn of this.#changed) fn()
  }
}
