// A tool call in the thread: what was asked, how it stands, what came of it.

import { clear, codeBlock, h, icon, visible } from './dom.js'

const MOST_SHOWN = 300_000
const STATES = {
  asked: ['waits for your decision', 'parked', 'clock'],
  done: ['done', 'ok', 'check'],
  denied: ['denied', 'bad', 'close'],
  expired: ['expired', 'warn', 'clock'],
  failed: ['failed', 'bad', 'warning'],
  unknown: ['unknown tool', 'warn', 'warning'],
  stopped: ['stopped', 'warn', 'stop'],
}

export class CallCard {
  /** `review()` opens the question again, for a call that waits. */
  constructor(part, model, review) {
    this.part = part
    this.model = model
    this.review = review
    this.node = h('section', {
      class: 'call-card',
      'aria-label': `Tool call: ${visible(part.title || part.name)}`,
    })
    this.draw()
  }

  update(part) {
    this.part = part
    this.draw()
  }

  draw() {
    const { part } = this
    const [words, kind, drawn] = STATES[part.state] ?? [part.state, '', 'info']
    const waits = part.state === 'asked'
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
        h('span', { class: `badge ${kind}` }, icon(drawn, 12), words),
      ),
      this.given(),
      part.notice ? h('p', { class: 'call-notice' }, visible(part.notice)) : null,
      waits
        ? h(
            'div',
            { class: 'row' },
            h('button', { type: 'button', class: 'button small', onclick: this.review }, 'Review'),
          )
        : null,
      part.shared?.length ? this.shared() : null,
      Object.keys(part.unread ?? {}).length ? this.unread() : null,
      part.result === null || part.result === undefined ? null : this.result(),
    )
  }

  given() {
    const { part } = this
    let value
    try {
      value = JSON.parse(part.arguments || '{}')
    } catch {
      return h('pre', { class: 'call-raw mono' }, visible(part.arguments.slice(0, 2_000)))
    }
    const rows =
      value !== null && typeof value === 'object' && !Array.isArray(value)
        ? Object.entries(value)
        : [['', value]]
    if (!rows.length) return null
    return h(
      'dl',
      { class: 'call-arguments' },
      rows.map(([key, one]) =>
        h('div', null, h('dt', null, visible(key)), h('dd', { class: 'mono' }, brief(one))),
      ),
    )
  }

  shared() {
    const { name, shared } = this.part
    const words = /^note_(?:write|edit)$/.test(name)
      ? 'Changed'
      : `Shared with ${visible(this.model || 'the model')}`
    return this.paths(words, shared)
  }

  unread() {
    return this.paths(
      'Not read',
      Object.entries(this.part.unread).map(([path, reason]) => `${path}: ${reason}`),
    )
  }

  paths(words, listed) {
    const rows = listed.map((one) => h('li', { class: 'mono' }, icon('file', 13), visible(one)))
    return h('div', { class: 'call-shared' }, h('span', { class: 'muted' }, words), h('ul', null, rows))
  }

  result() {
    const box = h('details', { class: 'folded' }, h('summary', null, 'Result'))
    box.addEventListener('toggle', () => {
      if (!box.open || box.children.length > 1) return
      const { result } = this.part
      const written = typeof result === 'string' ? result : JSON.stringify(result, null, 2)
      const cut = written.length > MOST_SHOWN
      box.append(
        codeBlock(
          cut
            ? `${written.slice(0, MOST_SHOWN)}\n… ${(written.length - MOST_SHOWN).toLocaleString()} more characters`
            : written,
          typeof result === 'string' ? '' : 'json',
        ),
      )
    })
    return box
  }
}

function brief(value) {
  const written = visible(typeof value === 'string' ? value : JSON.stringify(value))
  if (written.length <= 240) return written
  return h(
    'details',
    null,
    h('summary', null, `${written.slice(0, 200)}…`),
    h('div', { class: 'call-long' }, written),
  )
}
