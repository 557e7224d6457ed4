// The files or results that a call touches. If the person picks among them, each has a checkbox. All are
// shown, and those that are missing cannot be picked.

/** @import { Preview, Touched } from '../types' */

import { bytes, counted, h, text, visible } from './dom.js'
import { snippet } from './snippet.js'

let count = 0

/** @param {Touched[]} touched */
export const sizeOf = (touched) => touched.reduce((sum, one) => sum + (one.size ?? 0), 0)

export class Picks {
  /**
   * `selected` returns whether a file or result is selected at first. `onpick` is called after each change.
   *
   * @param {Preview} shown
   * @param {string} legend
   * @param {(one: Touched) => boolean} selected
   * @param {() => void} [onpick]
   */
  constructor(shown, legend, selected, onpick = () => {}) {
    this.onpick = onpick
    this.touched = shown.touched
    this.pick = shown.pick
    /** @type {Map<string, HTMLInputElement>} by key */
    this.boxes = new Map()
    this.tally = h('span', { class: 'picks-tally', role: 'status' })
    const list = h(
      'ul',
      { class: 'picks-list' },
      shown.touched.map((one) => this.row(one, selected(one))),
    )
    const buttons = h(
      'div',
      { class: 'row tight' },
      this.button('Select all', true),
      this.button('Deselect all', false),
    )
    const head = h('div', { class: 'picks-head' }, this.tally, shown.pick ? buttons : null)
    this.node = h('fieldset', { class: 'picks' }, h('legend', null, legend), head, list)
    this.updateTally()
  }

  /** @param {Touched} one @param {boolean} selected */
  row(one, selected) {
    count += 1
    const id = `pick-${count}`
    const name = one.path.split('/').at(-1) ?? ''
    const about = [
      h(
        'span',
        { class: 'pick-name' },
        h('span', { class: 'pick-file' }, visible(name)),
        one.missing
          ? h('span', { class: 'badge warn' }, visible(one.reason || 'not found'))
          : h('span', { class: 'pick-size' }, bytes(one.size)),
      ),
      name === one.path ? null : h('span', { class: 'pick-path mono' }, visible(one.path)),
    ]
    const piece = one.snippet ? snippet(one.snippet, one.marked) : null
    if (!this.pick) return h('li', { class: 'pick' }, h('div', { class: 'pick-text' }, about, piece))
    const box = h('input', {
      type: 'checkbox',
      id,
      checked: selected && !one.missing,
      disabled: one.missing,
      onchange: () => this.changed(),
    })
    this.boxes.set(one.key, box)
    if (piece) {
      piece.id = `${id}-piece`
      box.setAttribute('aria-describedby', piece.id)
      piece.addEventListener('click', () => box.click())
    }
    const label = h('label', { class: 'pick-label', for: id }, about)
    const text = h('div', { class: 'pick-text' }, label, piece)
    return h('li', { class: one.missing ? 'pick missing' : 'pick' }, box, text)
  }

  /** @param {string} label @param {boolean} on */
  button(label, on) {
    const all = () => {
      for (const box of this.boxes.values()) if (!box.disabled) box.checked = on
      this.changed()
    }
    return h('button', { type: 'button', class: 'button small', onclick: all }, label)
  }

  /** @param {Touched} one */
  isSelected(one) {
    return this.boxes.get(one.key)?.checked === true
  }

  /** The keys of everything that is selected. */
  get selected() {
    return this.touched.filter((one) => this.isSelected(one)).map((one) => one.key)
  }

  /** The number of files or results that can be picked. */
  get pickable() {
    return this.touched.filter((one) => !one.missing).length
  }

  /** Whether everything that can be selected is selected. */
  get all() {
    return this.touched.every((one) => one.missing || this.isSelected(one))
  }

  changed() {
    this.updateTally()
    this.onpick()
  }

  updateTally() {
    const { touched } = this
    if (!this.pick) {
      text(this.tally, `${counted(touched.length, 'file')}, ${bytes(sizeOf(touched))}`)
      return
    }
    const selected = touched.filter((one) => this.isSelected(one))
    const some = `${selected.length} of ${touched.length} selected`
    text(
      this.tally,
      selected.length ? `${some}, ${bytes(sizeOf(selected))}` : `${some}: select at least one, or deny`,
    )
  }
}
