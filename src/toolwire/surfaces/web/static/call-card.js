// A tool call in the thread: what the model asked for, its state, and its result.

/** @import { CallPart, Json, JsonObject } from '../types' */

import { clear, codeBlock, h, icon, visible } from './dom.js'
import { ranArguments } from './ran-arguments.js'

const MOST_SHOWN = 300_000
/** By state: text, kind of badge, icon. */
const STATES = new Map([
  ['asked', ['waiting for your decision', 'warn', 'clock']],
  ['done', ['done', 'ok', 'check']],
  ['denied', ['denied', 'bad', 'close']],
  ['expired', ['expired', 'warn', 'clock']],
  ['failed', ['failed', 'bad', 'warning']],
  ['unknown', ['unknown tool', 'warn', 'warning']],
  ['stopped', ['stopped', 'warn', 'stop']],
])

export class CallCard {
  /**
   * `review` opens the approval dialog again, for a call that waits.
   *
   * @param {CallPart} part
   * @param {string} model
   * @param {() => unknown} review
   */
  constructor(part, model, review) {
    this.part = part
    this.model = model
    this.review = review
    const label = `Tool call: ${visible(part.title || part.name)}`
    this.node = h('section', { class: 'call-card', 'aria-label': label })
    this.draw()
  }

  /** @param {CallPart} part */
  update(part) {
    this.part = part
    this.draw()
  }

  draw() {
    const { part } = this
    const [state, kind, picture] = STATES.get(part.state) ?? [part.state, '', 'info']
    const review = h('button', { type: 'button', class: 'button small', onclick: this.review }, 'Review')
    clear(
      this.node,
      h(
        'div',
        { class: 'call-head' },
        h('span', { class: 'call-icon' }, icon('tool', 16)),
        h(
          'span',
          { class: 'call-title' },
          visible(part.title || part.name),
          part.title && part.title !== part.name
            ? h('code', { class: 'call-name' }, visible(part.name))
            : null,
        ),
        h('span', { class: `badge ${kind}` }, icon(picture, 12), state),
      ),
      this.arguments(),
      part.notice ? h('p', { class: 'call-notice' }, visible(part.notice)) : null,
      part.state === 'asked' ? h('div', { class: 'row' }, review) : null,
      this.shared(),
      this.unread(),
      part.result === null ? null : this.result(),
    )
  }

  arguments() {
    const { part } = this
    if (part.edited) return ranArguments(...part.edited)
    /** @type {Json} */
    let value
    try {
      value = JSON.parse(part.arguments || '{}')
    } catch {
      return h('pre', { class: 'call-raw mono' }, visible(part.arguments.slice(0, 2_000)))
    }
    const isObject = value !== null && typeof value === 'object' && !Array.isArray(value)
    const all = isObject ? /** @type {JsonObject} */ (value) : { '': value }
    return Object.keys(all).length ? ranArguments(all, all) : null
  }

  shared() {
    const { name, shared } = this.part
    const changes = /^note_(?:write|edit)$/.test(name)
    return paths(changes ? 'Changed' : `Shared with ${visible(this.model || 'the model')}`, shared)
  }

  unread() {
    const reasons = Object.entries(this.part.unread ?? {}).map(([path, reason]) => `${path}: ${reason}`)
    return paths('Not read', reasons)
  }

  /** The result, which is written into the page when it is unfolded. */
  result() {
    const box = h('details', { class: 'folded' }, h('summary', null, 'Result'))
    box.addEventListener('toggle', () => {
      if (!box.open || box.children.length > 1) return
      const { result } = this.part
      const isText = typeof result === 'string'
      const all = isText ? result : JSON.stringify(result, null, 2)
      const more = all.length - MOST_SHOWN
      const cut = more > 0 ? `${all.slice(0, MOST_SHOWN)}\n… ${more.toLocaleString()} more characters` : all
      box.append(codeBlock(cut, isText ? '' : 'json'))
    })
    return box
  }
}

/** @param {string} label @param {string[] | undefined} listed */
function paths(label, listed) {
  if (!listed?.length) return null
  const rows = listed.map((one) => h('li', { class: 'mono' }, icon('file', 13), visible(one)))
  return h('div', { class: 'call-shared' }, h('span', { class: 'muted' }, label), h('ul', null, rows))
}
