// A list of a turn's rows (from the backend, events, or to the client) with a search, and the whole text of
// the selected row beside the list.
//
// The search reads the rows page by page, with breaks for the browser. The list draws only the visible rows.

/** @import { Row, RowKind } from '../types' */
/** @import { RowSource } from './wire-source.js' */

import { messageOf } from './api.js'
import { bytes, clear, copyButton, counted, h, icon, text } from './dom.js'
import { escaped } from './invisible.js'
import { offset } from './numbers.js'
import { VirtualList } from './virtual.js'
import { gapText, gist, oneLine, pretty, toneOf } from './wire-text.js'
import { ROWS } from './wire-words.js'

const ROW_HEIGHT = 30
const LINE = 320
const LONG_GAP_MS = 250
const SLICE_MS = 8
const SEARCH_MS = 160
const MOST_SHOWN = 60_000
const MOST_SEARCHED = 200_000

export class RowsView {
  /** In lower case; '' without a search. */
  search = ''
  /** @type {number[] | null} the rows that match; null without a search */
  matches = null
  /** @type {Set<number>} */
  matchSet = new Set()
  /** The selected row; -1 for none. */
  selected = -1
  pretty = true
  #searches = 0
  #timer = 0
  #frame = 0

  /**
   * `onpick` is called when the whole text of a row is shown.
   *
   * @param {RowKind} kind
   * @param {RowSource} source
   * @param {(row: Row) => void} onpick
   */
  constructor(kind, source, onpick) {
    const names = ROWS[kind]
    const label = names.search
    this.source = source
    this.onpick = onpick
    this.one = names.one
    this.input = h('input', {
      class: 'input',
      type: 'search',
      placeholder: label,
      'aria-label': label,
      autocomplete: 'off',
      spellcheck: 'false',
      oninput: () => this.findSoon(),
      onkeydown: (event) => this.key(event),
    })
    this.found = h('span', { class: 'rows-found', role: 'status' })
    this.previous = this.step('flip', 'Previous match', -1)
    this.next = this.step('', 'Next match', 1)
    this.only = h('input', { type: 'checkbox', onchange: () => this.narrow() })
    this.detail = h(
      'div',
      { class: 'rows-detail' },
      h(
        'div',
        { class: 'rows-none muted' },
        'Select a row to read its whole text. Arrow keys, Page Up and Page Down move in the list.',
      ),
    )
    this.list = new VirtualList({
      label: `${names.title}: ${names.what}`,
      rowHeight: ROW_HEIGHT,
      make: () =>
        h(
          'div',
          null,
          ['r-at', 'r-gap', 'r-label', 'r-text'].map((name) => h('span', { class: name })),
        ),
      draw: (row, position) => this.drawRow(row, this.indexAt(position)),
      onpick: (position) => this.pickedAt(position),
      onview: (first, last) => source.want(this.indexAt(first), this.indexAt(last)),
    })
    this.element = this.draw()
    this.off = source.onchange(() => {
      this.list.resize(this.length)
      this.list.redraw()
      if (this.waiting && source.at(this.selected)) this.showSelected()
    })
    /** Whether the selected row is being loaded. */
    this.waiting = false
    this.list.resize(this.length)
  }

  draw() {
    const bar = h(
      'div',
      { class: 'rows-bar' },
      h('div', { class: 'rows-search' }, icon('search', 15), this.input),
      this.found,
      this.previous,
      this.next,
      h('label', { class: 'rows-only' }, this.only, 'Only matches'),
    )
    const head = h(
      'div',
      { class: 'rows-head', 'aria-hidden': 'true' },
      h('span', { class: 'r-at' }, 'Time (s)'),
      h('span', { class: 'r-gap' }, 'Gap'),
      h('span', { class: 'r-label' }, 'Label'),
      h('span', null, 'Text'),
    )
    const list = h('div', { class: 'rows-list' }, head, this.list.element)
    return h('div', { class: 'rows' }, bar, h('div', { class: 'rows-body' }, list, this.detail))
  }

  /** @param {string} turned @param {string} label @param {number} by */
  step(turned, label, by) {
    return h(
      'button',
      {
        type: 'button',
        class: `button quiet small square ${turned}`,
        'aria-label': label,
        title: label,
        disabled: true,
        onclick: () => this.jump(by),
      },
      icon('chevron', 15),
    )
  }

  /** The rows in the list: the matches if only those are shown, or null for all. */
  get listed() {
    return this.only.checked ? this.matches : null
  }

  get length() {
    return this.listed?.length ?? this.source.total
  }

  /** The row at a position of the list. @param {number} position */
  indexAt(position) {
    return this.listed ? (this.listed[position] ?? 0) : position
  }

  /** The position of a row in the list, or -1. @param {number} index */
  positionOf(index) {
    return this.listed ? this.listed.indexOf(index) : index
  }

  // --- rows ------------------------------------------------------------------------------------------------

  /** @param {HTMLElement} node @param {number} index */
  drawRow(node, index) {
    const { source } = this
    const row = source.at(index)
    const [at, gap, label, line] = /** @type {HTMLElement[]} */ ([...node.children])
    node.classList.toggle('hit', this.matchSet.has(index))
    node.classList.toggle('loading-row', !row)
    if (!row) {
      at.textContent = gap.textContent = label.textContent = ''
      line.textContent = source.error ? messageOf(source.error) : 'loading …'
      return
    }
    const before = index ? source.at(index - 1) : null
    const waited = before ? row[0] - before[0] : null
    at.textContent = offset(row[0])
    gap.textContent = waited === null ? '' : gapText(waited)
    gap.classList.toggle('long', waited !== null && waited >= LONG_GAP_MS)
    label.textContent = row[1]
    label.dataset.tone = toneOf(row[1])
    this.drawText(line, row[2])
  }

  /** @param {HTMLElement} node @param {string} whole */
  drawText(node, whole) {
    const { search } = this
    const at = search ? whole.slice(0, MOST_SEARCHED).toLowerCase().indexOf(search) : -1
    if (at < 0) {
      node.textContent = oneLine((search ? whole : gist(whole)).slice(0, LINE))
      return
    }
    const from = Math.max(0, at - 40)
    const end = at + search.length
    clear(
      node,
      (from ? '…' : '') + oneLine(whole.slice(from, at)),
      h('mark', null, whole.slice(at, end)),
      oneLine(whole.slice(end, at + LINE)),
    )
  }

  // --- search ----------------------------------------------------------------------------------------------

  findSoon() {
    clearTimeout(this.#timer)
    this.#timer = setTimeout(() => this.find(), SEARCH_MS)
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    if (event.key === 'Enter') {
      event.preventDefault()
      this.jump(event.shiftKey ? -1 : 1)
    } else if (event.key === 'Escape' && this.input.value) {
      event.preventDefault()
      this.input.value = ''
      this.find()
    }
  }

  async find() {
    this.search = this.input.value.toLowerCase()
    this.matches = null
    this.matchSet = new Set()
    this.#searches += 1
    if (!this.search) {
      text(this.found, '')
      this.showMatches()
      return
    }
    text(this.found, 'searching …')
    try {
      const matches = await this.collect(this.search)
      if (!matches) return
      this.matches = matches
      this.matchSet = new Set(matches)
      text(this.found, counted(matches.length, 'match', 'matches'))
      this.showMatches()
      const next = matches.find((index) => index >= this.selected) ?? matches[0]
      if (next !== undefined && !this.matchSet.has(this.selected)) this.select(next)
    } catch (error) {
      text(this.found, messageOf(error))
    }
  }

  /** The rows that match, or null if another search has started. @param {string} search */
  async collect(search) {
    const current = this.#searches
    const out = []
    let since = performance.now()
    for await (const [first, rows] of this.source.all()) {
      for (let at = 0; at < rows.length; at += 1) {
        const [, label, whole] = rows[at]
        if (whole.toLowerCase().includes(search) || label.toLowerCase().includes(search)) out.push(first + at)
        if (at % 50 === 0 && performance.now() - since > SLICE_MS) {
          await new Promise((resolve) => setTimeout(resolve))
          since = performance.now()
        }
        if (current !== this.#searches) return null
      }
      if (current !== this.#searches) return null
    }
    return out
  }

  showMatches() {
    this.previous.disabled = this.next.disabled = !this.matches?.length
    this.narrow()
  }

  narrow() {
    this.list.resize(this.length)
    this.list.redraw()
    this.list.pick(this.positionOf(this.selected), true)
  }

  /** Selects the next match, or the previous one. @param {number} by 1 or -1 */
  jump(by) {
    const { matches, selected } = this
    if (!matches?.length) return
    const found =
      by > 0 ? matches.find((index) => index > selected) : matches.findLast((index) => index < selected)
    this.select(found ?? (by > 0 ? matches[0] : matches[matches.length - 1]))
  }

  /** @param {number} index */
  select(index) {
    this.list.pick(this.positionOf(index))
  }

  // --- the selected row ------------------------------------------------------------------------------------

  /** @param {number} position */
  pickedAt(position) {
    const { matches } = this
    this.selected = this.indexAt(position)
    this.source.want(this.selected, this.selected)
    if (matches && this.matchSet.has(this.selected)) {
      const number = matches.indexOf(this.selected) + 1
      text(this.found, `${number.toLocaleString()} of ${counted(matches.length, 'match', 'matches')}`)
    }
    this.#frame ||= requestAnimationFrame(() => {
      this.#frame = 0
      this.showSelected()
    })
  }

  showSelected() {
    const { selected, source } = this
    const row = source.at(selected)
    this.waiting = !row
    if (!row) return
    const [at, label, whole] = row
    const before = selected ? source.at(selected - 1) : null
    const facts = [`${offset(at)} s`, bytes(new Blob([whole]).size)]
    if (before) facts.splice(1, 0, `${gapText(at - before[0])} after the previous one`)
    const shown = this.pretty ? pretty(whole) : whole
    const code = h('code', null, escaped(shown.slice(0, MOST_SHOWN)))
    const toggle = h(
      'button',
      { type: 'button', class: 'button quiet small', 'aria-pressed': this.pretty },
      'Formatted',
    )
    toggle.addEventListener('click', () => {
      this.pretty = !this.pretty
      this.showSelected()
      /** @type {HTMLElement | null} */
      const redrawn = this.detail.querySelector('[aria-pressed]')
      redrawn?.focus()
    })
    const number = (selected + 1).toLocaleString()
    const name = `${this.one[0].toUpperCase()}${this.one.slice(1)} ${number}`
    const badge = h('span', { class: 'r-label', dataset: { tone: toneOf(label) } }, label)
    const head = h(
      'div',
      { class: 'rows-detail-head' },
      h('div', null, h('h3', null, name, ' ', badge), h('p', { class: 'muted small' }, facts.join(' · '))),
      h(
        'div',
        { class: 'row tight nowrap' },
        toggle,
        copyButton(() => whole),
      ),
    )
    const props = { class: 'rows-text', tabindex: '0', role: 'region', 'aria-label': `${name}, whole` }
    clear(this.detail, head, h('pre', props, code), this.moreButton(code, shown))
    this.onpick(row)
  }

  /** A button that shows the rest of a long text. @param {HTMLElement} code @param {string} shown */
  moreButton(code, shown) {
    const more = shown.length - MOST_SHOWN
    if (more <= 0) return null
    const button = h(
      'button',
      { type: 'button', class: 'button small' },
      `${more.toLocaleString()} more characters`,
    )
    button.addEventListener('click', () => {
      code.textContent = escaped(shown)
      button.remove()
    })
    return button
  }

  /** Selects a row from outside, and shows all rows if the list shows only matches. @param {number} index */
  pick(index) {
    if (this.only.checked) {
      this.only.checked = false
      this.narrow()
    }
    this.list.pick(index)
  }

  close() {
    this.off()
    this.#searches += 1
    clearTimeout(this.#timer)
    cancelAnimationFrame(this.#frame)
    this.list.close()
  }
}
