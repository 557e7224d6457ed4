// A JSON value as a tree. Objects and lists can be folded, long strings are cut, and each part is built only
// when it is shown.

/** @import { Child, Json } from '../types' */

import { counted, h } from './dom.js'
import { escaped } from './invisible.js'

const LONG = 280
const SHORTENED = 160
const MANY = 100
const OPEN_DEPTH = 3
const SMALL = 72

/** The key is null for items of a list. @typedef {[string | null, Json]} Item */

/** @param {Json} value */
export function jsonTree(value) {
  return h('div', { class: 'json' }, branch(null, value, 0, true))
}

/** The whole value as text, for the clipboard. @param {Json} value */
export const jsonText = (value) => JSON.stringify(value, null, 2)

/** @param {string} key */
const keyText = (key) => h('span', { class: 'json-key' }, escaped(JSON.stringify(key)))

/** @param {string | null} key @param {Json} value @param {number} depth @param {boolean} last */
function branch(key, value, depth, last) {
  const head = key === null ? null : [keyText(key), ': ']
  const comma = last ? '' : ','
  if (value === null || typeof value !== 'object')
    return h('div', { class: 'json-line' }, head, leaf(value), comma)
  const isList = Array.isArray(value)
  const [opening, closing] = isList ? ['[', ']'] : ['{', '}']
  /** @type {Item[]} */
  const items = isList ? value.map((item) => [null, item]) : Object.entries(value)
  if (!items.length) return h('div', { class: 'json-line' }, head, opening + closing, comma)
  if (isFlat(value, items))
    return h('div', { class: 'json-line' }, head, opening, flat(items), closing, comma)
  const count = h('span', { class: 'json-count' }, ` ${counted(items.length, isList ? 'item' : 'field')} `)
  const end = h('span', { class: 'json-count' }, closing + comma)
  const fold = h('details', { class: 'json-fold' }, h('summary', null, head, opening, count, end))
  let built = false
  const build = () => {
    if (built) return
    built = true
    const inside = h('div', { class: 'json-inside' })
    addItems(inside, items, 0, depth)
    fold.append(inside, h('div', { class: 'json-line' }, closing, comma))
  }
  fold.addEventListener('toggle', () => {
    if (fold.open) build()
  })
  if (depth < OPEN_DEPTH) {
    build()
    fold.open = true
  }
  return fold
}

/**
 * Adds up to a hundred items, and a button that adds the next ones.
 *
 * @param {HTMLElement} inside
 * @param {Item[]} items
 * @param {number} from
 * @param {number} depth
 */
function addItems(inside, items, from, depth) {
  const to = Math.min(items.length, from + MANY)
  for (let at = from; at < to; at += 1) {
    const [key, value] = items[at]
    inside.append(branch(key, value, depth + 1, at === items.length - 1))
  }
  if (to === items.length) return
  const more = `${(items.length - to).toLocaleString()} more`
  const button = h('button', { type: 'button', class: 'json-more' }, more)
  button.addEventListener('click', () => {
    button.remove()
    addItems(inside, items, to, depth)
  })
  inside.append(button)
}

/** Whether a value fits on one line. @param {Json} value @param {Item[]} items */
function isFlat(value, items) {
  const isSmall = items.every(([, item]) => {
    if (typeof item === 'string') return item.length <= SMALL
    return item === null || typeof item !== 'object'
  })
  return items.length <= 6 && isSmall && JSON.stringify(value).length <= SMALL
}

/** @param {Item[]} items @returns {Child} */
function flat(items) {
  return items.map(([key, item], at) => [
    at ? ', ' : '',
    key === null ? null : [keyText(key), ': '],
    leaf(item),
  ])
}

/** @param {Json} value @returns {Child} */
function leaf(value) {
  if (typeof value !== 'string')
    return h('span', { class: value === null ? 'json-null' : 'json-number' }, String(value))
  const all = escaped(JSON.stringify(value))
  if (all.length <= LONG) return h('span', { class: 'json-string' }, all)
  const shown = h('span', { class: 'json-string' })
  const button = h('button', { type: 'button', class: 'json-more' })
  /** @param {boolean} open */
  const show = (open) => {
    shown.textContent = open ? all : all.slice(0, SHORTENED)
    button.textContent = open ? 'Show less' : `… ${(all.length - SHORTENED).toLocaleString()} more characters`
    button.setAttribute('aria-expanded', String(open))
  }
  button.addEventListener('click', () => show(button.getAttribute('aria-expanded') === 'false'))
  show(false)
  return [shown, button]
}
