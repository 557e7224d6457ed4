// JSON to look at: objects and lists fold, long strings are cut until somebody wants them whole, and nothing is built before it is seen.

import { h } from './dom.js'
import { visible } from './wire-words.js'

const LONG = 280
const SHORTENED = 160
const MANY = 100
const OPEN_DEPTH = 3
const SMALL = 72

/** A value as a tree of text. */
export function jsonTree(value) {
  return h('div', { class: 'json' }, one(null, value, 0, true))
}

/** Text of the whole value, for the clipboard. */
export const jsonText = (value) => JSON.stringify(value, null, 2)

function one(key, value, depth, last) {
  const head = key === null ? null : [h('span', { class: 'json-key' }, visible(JSON.stringify(key))), ': ']
  const comma = last ? '' : ','
  if (value === null || typeof value !== 'object')
    return h('div', { class: 'json-line' }, head, leaf(value), comma)
  const list = Array.isArray(value)
  const [opening, closing] = list ? ['[', ']'] : ['{', '}']
  const entries = list ? value.map((item) => [null, item]) : Object.entries(value)
  if (!entries.length) return h('div', { class: 'json-line' }, head, opening + closing, comma)
  if (isFlat(value, entries))
    return h('div', { class: 'json-line' }, head, opening, flat(entries), closing, comma)
  const fold = h('details', { class: 'json-fold' })
  const told = list
    ? `${entries.length} ${entries.length === 1 ? 'item' : 'items'}`
    : `${entries.length} ${entries.length === 1 ? 'field' : 'fields'}`
  fold.append(
    h(
      'summary',
      null,
      head,
      opening,
      h('span', { class: 'json-told' }, ` ${told} `),
      h('span', { class: 'json-told' }, closing + comma),
    ),
  )
  let built = false
  const build = () => {
    if (built) return
    built = true
    const inside = h('div', { class: 'json-inside' })
    more(inside, entries, 0, depth)
    fold.append(inside, h('div', { class: 'json-line' }, closing, comma))
  }
  fold.addEventListener('toggle', () => fold.open && build())
  if (depth < OPEN_DEPTH) {
    build()
    fold.open = true
  }
  return fold
}

/** The next so many entries, and a button for the rest. */
function more(inside, entries, from, depth) {
  const to = Math.min(entries.length, from + MANY)
  for (let at = from; at < to; at += 1)
    inside.append(one(entries[at][0], entries[at][1], depth + 1, at === entries.length - 1))
  if (to === entries.length) return
  const button = h(
    'button',
    { type: 'button', class: 'json-more' },
    `${(entries.length - to).toLocaleString()} more`,
  )
  button.addEventListener('click', () => {
    button.remove()
    more(inside, entries, to, depth)
  })
  inside.append(button)
}

/** Whether it fits on a line by itself. */
function isFlat(value, entries) {
  if (
    entries.length > 6 ||
    entries.some(
      ([, item]) =>
        (item !== null && typeof item === 'object') || (typeof item === 'string' && item.length > SMALL),
    )
  )
    return false
  return JSON.stringify(value).length <= SMALL
}

function flat(entries) {
  const out = []
  entries.forEach(([key, item], at) => {
    if (key !== null) out.push(h('span', { class: 'json-key' }, visible(JSON.stringify(key))), ': ')
    out.push(leaf(item))
    if (at < entries.length - 1) out.push(', ')
  })
  return out
}

function leaf(value) {
  if (typeof value !== 'string')
    return h('span', { class: value === null ? 'json-null' : 'json-number' }, String(value))
  const written = visible(JSON.stringify(value))
  if (written.length <= LONG) return h('span', { class: 'json-string' }, written)
  const shown = h('span', { class: 'json-string' }, written.slice(0, SHORTENED))
  const button = h('button', { type: 'button', class: 'json-more', 'aria-expanded': false })
  const say = (open) => {
    shown.textContent = open ? written : written.slice(0, SHORTENED)
    button.textContent = open ? 'fold' : `… ${(written.length - SHORTENED).toLocaleString()} more characters`
    button.setAttribute('aria-expanded', String(open))
  }
  button.addEventListener('click', () => say(button.getAttribute('aria-expanded') === 'false'))
  say(false)
  return [shown, button]
}
