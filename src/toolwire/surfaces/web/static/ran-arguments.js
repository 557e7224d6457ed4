// The arguments of a call that ran. If a person edited them, what the model asked for is struck through.

/** @import { Json, JsonObject } from '../types' */

import { h, visible } from './dom.js'

/** @param {JsonObject} asked @param {JsonObject} ran */
export function ranArguments(asked, ran) {
  const names = Object.keys({ ...asked, ...ran })
  return h(
    'dl',
    { class: 'call-arguments' },
    names.map((name) =>
      h('div', null, h('dt', null, visible(name)), h('dd', { class: 'mono' }, values(name, asked, ran))),
    ),
  )
}

/** @param {string} name @param {JsonObject} asked @param {JsonObject} ran */
function values(name, asked, ran) {
  const [before, now] = [asked, ran].map((side) => (Object.hasOwn(side, name) ? side[name] : undefined))
  const isSame = JSON.stringify(before) === JSON.stringify(now)
  if (isSame) return brief(/** @type {Json} */ (now))
  return [
    before === undefined ? null : h('del', null, spoken('The model asked for: '), brief(before)),
    before === undefined || now === undefined ? null : ' ',
    now === undefined ? null : h('ins', null, spoken('This ran: '), brief(now)),
  ]
}

/** @param {string} text for screen readers only */
const spoken = (text) => h('span', { class: 'visually-hidden' }, text)

/** @param {Json} value */
function brief(value) {
  const all = visible(typeof value === 'string' ? value : JSON.stringify(value))
  if (all.length <= 240) return all
  const long = h('div', { class: 'call-long' }, all)
  return h('details', null, h('summary', null, `${all.slice(0, 200)}…`), long)
}
