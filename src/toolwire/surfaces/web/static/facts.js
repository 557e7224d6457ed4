// The facts of a call to an MCP server, and the result of the call before it is shared.
//
// Law: text that a server wrote about itself is shown whole, and is marked as the server's own words.

/** @import { Preview } from '../types' */

import { h, icon, visible } from './dom.js'
import { fact } from './grants.js'

/** Labels of facts that a server wrote about itself: `FOREIGN` in tools/contract.py. */
const FOREIGN = new Set(['The server says', 'Its hints'])

/** The facts of a call, or null. @param {Preview} shown */
export function callFacts({ facts }) {
  if (!facts?.length) return null
  const own = facts.filter(([label]) => !FOREIGN.has(label))
  const said = facts.filter(([label]) => FOREIGN.has(label))
  const rows = own.map(([label, text]) => fact(visible(label), h('span', { class: 'mono' }, visible(text))))
  return h(
    'div',
    { class: 'stack' },
    h('dl', { class: 'facts wide' }, rows),
    said.length
      ? h(
          'figure',
          { class: 'foreign' },
          h('figcaption', null, 'In the server’s own words. Toolwire has not checked them.'),
          said.map(([label, text]) =>
            h(
              'div',
              null,
              h('span', { class: 'muted small' }, `${visible(label)}:`),
              h('blockquote', scrolled(label), visible(text)),
            ),
          ),
        )
      : null,
  )
}

/** The result of a call, before it is shared. @param {Preview} shown */
export function callResult({ content }) {
  if (!content) return null
  return h(
    'figure',
    { class: 'foreign' },
    h('figcaption', null, 'The result, as the server sent it. Toolwire has not checked it.'),
    h('blockquote', { ...scrolled('Result'), class: 'scroll mono' }, visible(content)),
  )
}

/** @param {string} label */
const scrolled = (label) => ({ class: 'scroll', tabindex: '0', role: 'group', 'aria-label': visible(label) })

/**
 * Why a call cannot work, and what an approval of the call does.
 *
 * @param {string} reason
 * @param {string} note
 */
export function callProblem(reason, note) {
  const why = h('p', null, h('strong', null, 'This call cannot work: '), visible(reason))
  return h(
    'div',
    { class: 'banner warn question-problem', role: 'note' },
    icon('warning'),
    h('div', { class: 'banner-text' }, why, h('p', null, visible(note))),
  )
}
