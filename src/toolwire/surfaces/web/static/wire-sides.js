// What the model wrote, beside what the client received. Markup in the model's text is highlighted, and
// linked to the call that it became.

/** @import { ReceivedCall, Turn } from '../types' */

import { clear, copyButton, counted, h, icon } from './dom.js'
import { escaped } from './invisible.js'
import { pieces } from './wire-pieces.js'
import { pretty } from './wire-text.js'

const MOST = 120_000
const BLOCK = 4_000
const LIT_MS = 1200
const MEANINGS = { call: 'became a call', thought: 'became a thought', markup: 'not sent to the client' }

/** @param {Turn} turn */
export function sidesView(turn) {
  const received = turn.got ?? {}
  const calls = received.calls ?? []
  const parts = pieces(turn.wrote.slice(0, MOST), received)
  const cards = calls.map(callCard)
  const left = h('pre', {
    class: 'sides-text',
    tabindex: '0',
    role: 'region',
    'aria-label': 'What the model wrote',
  })
  for (const { kind, text, calls: numbers } of parts) {
    if (kind === 'text') {
      left.append(...blocks(escaped(text)))
      continue
    }
    const links = numbers.map((number) => {
      const button = numberButton(number, `${calls[number].name}: show what the client received`)
      const card = cards[number]
      button.addEventListener('click', () => reveal(card.node))
      card.link(button)
      return button
    })
    const spoken = h('span', { class: 'visually-hidden' }, `[${MEANINGS[kind]}: ]`)
    const marked = { class: `piece ${kind}`, title: MEANINGS[kind] }
    left.append(h('mark', marked, links, kind === 'call' ? null : spoken, escaped(text)))
  }
  const more = turn.wrote.length - MOST
  if (more > 0) left.append(h('p', { class: 'muted' }, `… ${counted(more, 'more character')}`))
  if (!turn.wrote) clear(left, h('span', { class: 'muted' }, 'Nothing.'))

  const text = received.text ?? ''
  const nothing = calls.length ? null : h('p', { class: 'muted' }, 'Nothing.')
  const right = h(
    'div',
    { class: 'sides-received' },
    received.thoughts ? thoughts(received.thoughts) : null,
    text ? h('div', { class: 'sides-content' }, blocks(text.slice(0, MOST))) : nothing,
    cards.map((card) => card.node),
  )
  const explained = parts.some((part) => part.kind === 'call')
    ? 'The colours show what the text became. Select a number to see the call that the client received.'
    : calls.length
      ? 'The backend sent the calls separately from the text.'
      : 'There were no calls in this turn.'
  const format = 'The text and the calls that Toolwire sent to the client.'
  return h(
    'div',
    { class: 'stack loose' },
    h(
      'div',
      { class: 'chart-legend' },
      h('span', { class: 'piece-key call' }, 'became a call'),
      h('span', { class: 'piece-key thought' }, 'became a thought'),
      h(
        'span',
        { class: 'piece-key markup' },
        'not sent: markup around calls, or text that was dropped (see Overview)',
      ),
    ),
    h(
      'div',
      { class: 'sides' },
      side('What the model wrote', explained, () => turn.wrote, left),
      side('What the client received', format, () => JSON.stringify(received, null, 2), right),
    ),
  )
}

/** @param {string} title @param {string} about @param {() => string} copied @param {HTMLElement} body */
function side(title, about, copied, body) {
  const words = h('div', null, h('h2', null, title), h('p', { class: 'muted small' }, about))
  const head = h('div', { class: 'row between nowrap sides-head' }, words, copyButton(copied))
  return h('section', { class: 'panel side' }, head, body)
}

/** @param {string} text */
function thoughts(text) {
  const summary = h('summary', null, icon('thought', 15), ' Thoughts')
  return h('details', { class: 'sides-thoughts' }, summary, h('div', { class: 'sides-content' }, text))
}

/**
 * Long text in blocks of whole lines, so that only the visible ones are laid out. The first and the last line
 * stay inline.
 *
 * @param {string} text
 * @returns {(string | HTMLElement)[]}
 */
function blocks(text) {
  /** @type {(string | HTMLElement)[]} */
  const out = []
  let from = text.length > BLOCK ? text.indexOf('\n') + 1 : 0
  if (from) out.push(text.slice(0, from))
  while (from && text.length - from > BLOCK) {
    let end = text.lastIndexOf('\n', from + BLOCK) + 1
    if (end <= from) end = text.indexOf('\n', from) + 1
    if (!end) break
    const lines = text.slice(from, end)
    const count = lines.split('\n').length - 1
    out.push(h('span', { class: 'sides-block', vars: { '--lines': count } }, lines))
    from = end
  }
  out.push(text.slice(from))
  return out
}

/** @param {number} number @param {string} about */
function numberButton(number, about) {
  const label = `Call ${number + 1}, ${about}`
  return h('button', { type: 'button', class: 'sides-number', 'aria-label': label }, number + 1)
}

/**
 * A call as the client received it. `link` makes its button lead to the place where the model wrote the call.
 *
 * @param {ReceivedCall} call
 * @param {number} number
 */
function callCard(call, number) {
  const button = numberButton(number, `${call.name}: show where the model wrote it`)
  button.disabled = true
  const props = {
    class: 'sides-arguments',
    tabindex: '0',
    role: 'region',
    'aria-label': `Arguments of call ${number + 1}`,
  }
  const node = h(
    'div',
    { class: 'card sides-call', tabindex: '-1' },
    h(
      'div',
      { class: 'row' },
      button,
      h('span', { class: 'strong mono' }, call.name),
      h('span', { class: 'muted small mono grow ellipsis', title: call.id }, call.id),
    ),
    h('pre', props, escaped(pretty(call.arguments ?? ''))),
  )
  /** @param {HTMLElement} target */
  const link = (target) => {
    button.disabled = false
    button.addEventListener('click', () => reveal(target))
  }
  return { node, link }
}

/** Scrolls to a node, focuses it, and highlights it for a moment. @param {HTMLElement} node */
function reveal(node) {
  const still = matchMedia('(prefers-reduced-motion: reduce)').matches
  node.scrollIntoView({ block: 'center', behavior: still ? 'auto' : 'smooth' })
  node.focus({ preventScroll: true })
  const lit = node.closest('.piece') ?? node
  lit.classList.add('lit')
  setTimeout(() => lit.classList.remove('lit'), LIT_MS)
}
