// The things that a call would touch. Where the person picks, each has a checkbox; none is hidden, and what is not there can not be picked.

import { bytes, counted, h, text, visible } from './dom.js'

let count = 0

export class Picks {
  /** `chosen(one)`: whether a thing is selected at first. */
  constructor(shown, { legend, chosen, model }) {
    this.touched = shown.touched
    this.pick = shown.pick
    this.model = model
    this.boxes = new Map()
    this.tally = h('span', { class: 'picks-tally', role: 'status' })
    const rows = shown.touched.map((one) => this.row(one, chosen(one)))
    const list = h('ul', { class: 'picks-list' }, rows)
    const head = shown.pick
      ? h(
          'div',
          { class: 'picks-head' },
          this.tally,
          h(
            'div',
            { class: 'row tight' },
            this.button('Select All', true),
            this.button('Deselect All', false),
          ),
        )
      : h(
          'div',
          { class: 'picks-head' },
          text(
            this.tally,
            `${counted(shown.touched.length, 'file')}, ${bytes(shown.touched.reduce((sum, one) => sum + (one.size ?? 0), 0))}`,
          ),
        )
    this.node = h('fieldset', { class: 'picks' }, h('legend', null, legend), head, list)
    this.told()
  }

  row(one, chosen) {
    const id = `pick-${(count += 1)}`
    const name = one.path.split('/').at(-1)
    const words = [
      h(
        'span',
        { class: 'pick-name' },
        h('span', { class: 'pick-file' }, visible(name)),
        one.missing
          ? h('span', { class: 'badge warn' }, visible(one.reason || 'not found'))
          : h('span', { class: 'pick-size' }, bytes(one.size)),
      ),
      name === one.path ? null : h('span', { class: 'pick-path mono' }, visible(one.path)),
      one.snippet ? h('span', { class: 'pick-snippet' }, visible(one.snippet)) : null,
    ]
    if (!this.pick) return h('li', { class: 'pick' }, h('span', { class: 'pick-words' }, words))
    const box = h('input', {
      type: 'checkbox',
      id,
      checked: chosen && !one.missing,
      disabled: one.missing,
      onchange: () => this.told(),
    })
    this.boxes.set(one.key, box)
    return h(
      'li',
      { class: one.missing ? 'pick missing' : 'pick' },
      box,
      h('label', { class: 'pick-words', for: id }, words),
    )
  }

  button(label, on) {
    const all = () => {
      for (const box of this.boxes.values()) if (!box.disabled) box.checked = on
      this.told()
    }
    return h('button', { type: 'button', class: 'button small', onclick: all }, label)
  }

  /** The keys of what is selected. */
  get chosen() {
    return this.touched.filter((one) => this.boxes.get(one.key)?.checked).map((one) => one.key)
  }

  /** Whether everything that is there is selected. */
  get all() {
    return this.touched.every((one) => one.missing || this.boxes.get(one.key)?.checked)
  }

  told() {
    if (!this.pick) return
    const chosen = this.touched.filter((one) => this.boxes.get(one.key).checked)
    const size = chosen.reduce((sum, one) => sum + (one.size ?? 0), 0)
    const some = `${chosen.length} of ${this.touched.length} selected`
    text(this.tally, chosen.length ? `${some}, ${bytes(size)}` : `${some}: nothing will be shared`)
  }
}
