// A list of any length. Only the visible rows, and a margin around them, are in the page.
//
// All rows have the same height, nodes are reused, and the list is drawn once per frame, so that the cost
// does not depend on the length. For the keyboard, the list is a listbox with one Tab stop: arrow keys, Page
// Up, Page Down, Home and End move the selection. For screen readers, every row has its position and the
// length of the list.

import { h } from './dom.js'

const MARGIN = 8

let lists = 0

/**
 * `make` creates an empty row, `draw` fills it, `onpick` is called when the person selects a row, and
 * `onview` when other rows become visible.
 *
 * @typedef {object} Options
 * @property {string} label
 * @property {number} rowHeight
 * @property {() => HTMLElement} make
 * @property {(row: HTMLElement, index: number) => void} draw
 * @property {(index: number) => void} onpick
 * @property {(first: number, last: number) => void} onview
 */

export class VirtualList {
  /** The selected row; -1 for none. */
  selected = -1
  #total = 0
  #height = 0
  #frame = 0
  /** @type {Map<number, HTMLElement>} by index */
  #shown = new Map()

  /** @param {Options} options */
  constructor(options) {
    this.options = options
    lists += 1
    this.id = `rows-${lists}`
    this.space = h('div', { class: 'vlist-space', role: 'presentation' })
    this.element = h(
      'div',
      {
        class: 'vlist',
        role: 'listbox',
        tabindex: '0',
        'aria-label': options.label,
        vars: { '--row': `${options.rowHeight}px` },
      },
      this.space,
    )
    this.observer = new ResizeObserver(() => {
      this.#height = this.element.clientHeight
      this.#schedule()
    })
    this.observer.observe(this.element)
    this.element.addEventListener('scroll', () => this.#schedule(), { passive: true })
    this.element.addEventListener('keydown', (event) => this.#key(event))
    this.space.addEventListener('click', (event) => {
      const row = event.target instanceof Element ? event.target.closest('.vlist-row') : null
      if (row instanceof HTMLElement) this.pick(Number(row.dataset.index))
    })
  }

  #schedule() {
    this.#frame ||= requestAnimationFrame(() => this.#render())
  }

  #render() {
    this.#frame = 0
    const { rowHeight, onview } = this.options
    const top = this.element.scrollTop
    const first = Math.max(0, Math.floor(top / rowHeight) - MARGIN)
    const last = Math.min(this.#total - 1, Math.ceil((top + (this.#height || 600)) / rowHeight) + MARGIN)
    const spare = []
    for (const [index, row] of this.#shown) {
      if (index >= first && index <= last) continue
      this.#shown.delete(index)
      spare.push(row)
    }
    const added = []
    for (let index = first; index <= last; index += 1) {
      if (this.#shown.has(index)) continue
      let row = spare.pop()
      if (!row) {
        row = this.#make()
        added.push(row)
      }
      this.#place(row, index)
      this.#shown.set(index, row)
    }
    this.space.append(...added)
    for (const row of spare) row.remove()
    this.#markActive()
    if (this.#total) onview(first, last)
  }

  #make() {
    const row = this.options.make()
    row.classList.add('vlist-row')
    row.setAttribute('role', 'option')
    return row
  }

  /** @param {HTMLElement} row @param {number} index */
  #place(row, index) {
    row.id = `${this.id}-${index}`
    row.dataset.index = String(index)
    row.style.transform = `translateY(${index * this.options.rowHeight}px)`
    row.setAttribute('aria-posinset', String(index + 1))
    row.setAttribute('aria-setsize', String(this.#total))
    row.setAttribute('aria-selected', String(index === this.selected))
    this.options.draw(row, index)
  }

  /** Names the selected row as the active one if it is in the page. */
  #markActive() {
    if (this.#shown.has(this.selected))
      this.element.setAttribute('aria-activedescendant', `${this.id}-${this.selected}`)
    else this.element.removeAttribute('aria-activedescendant')
  }

  /** Changes the number of rows. The scroll position stays. @param {number} total */
  resize(total) {
    if (total !== this.#total) {
      this.#total = total
      this.space.style.height = `${total * this.options.rowHeight}px`
      for (const row of this.#shown.values()) row.setAttribute('aria-setsize', String(total))
    }
    this.#schedule()
  }

  /** Draws the visible rows again. */
  redraw() {
    for (const [index, row] of this.#shown) this.options.draw(row, index)
    this.#schedule()
  }

  /** Scrolls to a row. @param {number} index */
  #reveal(index) {
    const { rowHeight } = this.options
    const { element } = this
    const top = index * rowHeight
    const height = this.#height || element.clientHeight
    if (top < element.scrollTop) element.scrollTop = Math.max(0, top - rowHeight)
    else if (top + rowHeight > element.scrollTop + height) element.scrollTop = top + 2 * rowHeight - height
  }

  /**
   * Selects a row; -1 selects none. With `quiet`, `onpick` is not called.
   *
   * @param {number} index
   * @param {boolean} [quiet]
   */
  pick(index, quiet = false) {
    this.#shown.get(this.selected)?.setAttribute('aria-selected', 'false')
    this.selected = index < 0 ? -1 : Math.min(index, this.#total - 1)
    this.#shown.get(this.selected)?.setAttribute('aria-selected', 'true')
    if (this.selected >= 0) this.#reveal(this.selected)
    this.#schedule()
    this.#markActive()
    if (!quiet && this.selected >= 0) this.options.onpick(this.selected)
  }

  /** @param {KeyboardEvent} event */
  #key(event) {
    if (event.altKey || event.ctrlKey || event.metaKey || !this.#total) return
    const { rowHeight } = this.options
    const page = Math.max(1, Math.floor(this.#height / rowHeight) - 1)
    const all = this.#total
    /** @type {{ [key: string]: number }} */
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -all, End: all }
    const step = steps[event.key]
    if (step === undefined) return
    event.preventDefault()
    const top = this.element.scrollTop / rowHeight
    const start = step > 0 ? Math.ceil(top) - 1 : Math.floor(top)
    const from = this.selected < 0 ? start : this.selected
    this.pick(Math.max(0, Math.min(all - 1, from + step)))
  }

  close() {
    this.observer.disconnect()
    cancelAnimationFrame(this.#frame)
  }
}
