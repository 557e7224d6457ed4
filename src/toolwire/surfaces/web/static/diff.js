// A unified diff as it is read: line numbers, signs and words. Not by colour alone. Long ones are laid out piece by piece.

import { counted, h, visible } from './dom.js'

const PIECE = 200
const HUNK = /^@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@(.*)$/

/** What every line of a diff is: `{kind, old, new, text}`; kind: 'file', 'hunk', 'added', 'removed', 'same', 'note'. */
export function lines(diff) {
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
    } else if (!inside && (line.startsWith('---') || line.startsWith('+++')))
      out.push({ kind: 'file', text: line })
    else if (line.startsWith('+')) out.push({ kind: 'added', new: now++, text: line.slice(1) })
    else if (line.startsWith('-')) out.push({ kind: 'removed', old: old++, text: line.slice(1) })
    else if (line.startsWith('\\')) out.push({ kind: 'note', text: line.slice(1).trim() })
    else out.push({ kind: 'same', old: old++, new: now++, text: line.slice(1) })
  }
  return out
}

const SIGNS = { added: '+', removed: '−' }
const SPOKEN = { added: 'added: ', removed: 'removed: ' }

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

function drawLine(one) {
  const spoken = SPOKEN[one.kind]
  return h(
    'div',
    { class: `diff-line ${one.kind}` },
    h('span', { class: 'diff-number', 'aria-hidden': 'true' }, one.old ?? ''),
    h('span', { class: 'diff-number', 'aria-hidden': 'true' }, one.new ?? ''),
    h('span', { class: 'diff-sign', 'aria-hidden': 'true' }, SIGNS[one.kind] ?? ''),
    h(
      'span',
      { class: 'diff-text' },
      spoken ? h('span', { class: 'visually-hidden' }, spoken) : null,
      visible(one.text) || ' ',
    ),
  )
}
