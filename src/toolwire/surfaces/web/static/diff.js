// A unified diff with line numbers and signs, so that colour is not needed to read it. The lines of a long
// diff are laid out in pieces.

import { counted, h, visible } from './dom.js'

/** @typedef {'file' | 'hunk' | 'added' | 'removed' | 'same' | 'note'} Kind */
/** @typedef {{ kind: Kind, old?: number, new?: number, text: string }} Line */

const PIECE = 200
const HUNK = /^@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@/
const SIGNS = new Map([
  ['added', '+'],
  ['removed', '−'],
])

/**
 * The lines of a unified diff, each with its kind and its line numbers.
 *
 * @param {string} diff
 */
export function lines(diff) {
  /** @type {Line[]} */
  const out = []
  let old = 0
  let now = 0
  let inside = false
  for (const line of diff.replace(/\n$/, '').split('\n')) {
    const hunk = HUNK.exec(line)
    if (hunk) {
      old = Number(hunk[1])
      now = Number(hunk[2])
      inside = true
      out.push({ kind: 'hunk', text: line })
    } else if (!inside && (line.startsWith('---') || line.startsWith('+++'))) {
      out.push({ kind: 'file', text: line })
    } else if (line.startsWith('+')) {
      out.push({ kind: 'added', new: now, text: line.slice(1) })
      now += 1
    } else if (line.startsWith('-')) {
      out.push({ kind: 'removed', old, text: line.slice(1) })
      old += 1
    } else if (line.startsWith('\\')) {
      out.push({ kind: 'note', text: line.slice(1).trim() })
    } else {
      out.push({ kind: 'same', old, new: now, text: line.slice(1) })
      old += 1
      now += 1
    }
  }
  return out
}

/** @param {string} diff */
export function drawDiff(diff) {
  const all = lines(diff)
  const added = all.filter((one) => one.kind === 'added').length
  const removed = all.filter((one) => one.kind === 'removed').length
  const label = `Changes: ${counted(added, 'line')} added, ${counted(removed, 'line')} removed`
  const box = h('div', { class: 'diff-lines scroll', tabindex: '0', role: 'group', 'aria-label': label })
  for (let from = 0; from < all.length; from += PIECE)
    box.append(h('div', { class: 'diff-piece' }, all.slice(from, from + PIECE).map(drawLine)))
  const counts = h(
    'div',
    { class: 'diff-head' },
    h('span', { class: 'diff-added' }, `+${added}`),
    h('span', { class: 'diff-removed' }, `−${removed}`),
    h('span', { class: 'muted' }, 'lines'),
  )
  return h('div', { class: 'diff' }, counts, box)
}

/** @param {Line} line */
function drawLine(line) {
  const sign = SIGNS.get(line.kind)
  const spoken = sign ? h('span', { class: 'visually-hidden' }, `${line.kind}: `) : null
  return h(
    'div',
    { class: `diff-line ${line.kind}` },
    h('span', { class: 'diff-number', 'aria-hidden': 'true' }, line.old),
    h('span', { class: 'diff-number', 'aria-hidden': 'true' }, line.new),
    h('span', { class: 'diff-sign', 'aria-hidden': 'true' }, sign),
    h('span', { class: 'diff-text' }, spoken, visible(line.text) || ' '),
  )
}
