// What the model wrote beside what the client got.
//
// Whatever of the model's text the client did not get as text was markup: of a call, of a thought, or dropped by policy. It is found by walking
// both texts side by side (`pieces`, pure), marked, numbered, and joined with the call that came of it.

import { clear, copyButton, counted, h, icon } from './dom.js'
import { prettied } from './wire-rows.js'
import { visible } from './wire-words.js'

const ANCHOR = 24
const MOST = 120_000
const BLOCK = 4_000

/**
 * The model's text in pieces: [{kind: 'text' | 'call' | 'thought' | 'markup', text, calls: [numbers]}]. Joined they are the text again.
 * A piece of kind `markup` is what came out as nothing: wrapping, or what was dropped.
 */
export function pieces(wrote, got) {
  const rough = walk(wrote, got.text ?? '')
  const out = []
  let call = 0
  for (const piece of rough) {
    if (piece.kept) {
      out.push({ kind: 'text', text: piece.text, calls: [] })
      continue
    }
    const split = calls(piece.text, got.calls ?? [], call)
    call = split.next
    for (const part of split.parts)
      out.push(part.kind === 'markup' ? thought(part, got.thoughts ?? '') : part)
  }
  return out
}

/** Cuts the text where it leaves the client's text, and where it comes back to it. */
function walk(wrote, text) {
  const out = []
  let at = 0
  let seen = 0
  const push = (kept, from, to) => {
    if (to > from) out.push({ kept, text: wrote.slice(from, to) })
  }
  while (at < wrote.length) {
    const from = at
    while (at < wrote.length && seen < text.length && wrote[at] === text[seen]) {
      at += 1
      seen += 1
    }
    push(true, from, at)
    if (at >= wrote.length) break
    while (seen < text.length && /\s/.test(text[seen]) && text[seen] !== wrote[at]) seen += 1
    const back = seen < text.length ? wrote.indexOf(text.slice(seen, seen + ANCHOR), at) : -1
    push(false, at, back < 0 ? wrote.length : back)
    if (back < 0) break
    at = back
  }
  return out
}

/** The calls in a piece of markup: it begins where the piece's own opening stands again before the next call's name. */
function calls(piece, all, from) {
  const starts = []
  let at = 0
  let next = from
  const opening = piece.trimStart().slice(0, 3)
  while (next < all.length) {
    const name = all[next].name
    const found = name ? nameAt(piece, name, at) : -1
    if (found < 0) break
    const begin = starts.length ? piece.lastIndexOf(opening, found) : piece.indexOf(opening)
    starts.push({
      begin: starts.length && begin <= starts.at(-1).name ? -1 : Math.max(0, begin),
      name: found,
      call: next,
    })
    at = found + name.length
    next += 1
  }
  if (!starts.length) return { next, parts: [{ kind: 'markup', text: piece, calls: [] }] }
  const parts = []
  for (const start of starts) {
    if (start.begin < 0) parts.at(-1).calls.push(start.call)
    else parts.push({ kind: 'call', begin: start.begin, calls: [start.call] })
  }
  const out = parts[0].begin > 0 ? [{ kind: 'markup', text: piece.slice(0, parts[0].begin), calls: [] }] : []
  parts.forEach((part, number) => {
    const end = parts[number + 1]?.begin ?? tailAt(piece, starts.at(-1).name, all[starts.at(-1).call])
    out.push({ kind: 'call', text: piece.slice(part.begin, end), calls: part.calls })
    if (!parts[number + 1] && end < piece.length)
      out.push({ kind: 'markup', text: piece.slice(end), calls: [] })
  })
  return { next, parts: out }
}

/** Where the name stands, as it is or as JSON writes it. */
function nameAt(piece, name, from) {
  const plain = piece.indexOf(name, from)
  return plain >= 0 ? plain : piece.indexOf(JSON.stringify(name).slice(1, -1), from)
}

/** Where the last call's markup ends: after its closing mark, which is on the line that ends the block, or with the piece. */
function tailAt(piece, from, call) {
  const close = /<\/[^\s<>]{1,80}>|```|\[\/[A-Z_]{1,40}\]|<\|[^|<>]{1,60}\|>/g
  const longest = Math.max(0, (call.arguments ?? '').length - 80)
  close.lastIndex = Math.min(piece.length, from + Math.min(longest, 0) + call.name.length)
  let end = -1
  for (let found = close.exec(piece); found; found = close.exec(piece)) {
    end = found.index + found[0].length
    if (/^\s*$|^\s*\n/.test(piece.slice(end, end + 40)) || piece.slice(end).search(/\S/) > 0) break
  }
  return end < 0 ? piece.length : end
}

function thought(part, thoughts) {
  const said = thoughts.trim().slice(0, ANCHOR)
  return said && part.text.includes(said) ? { ...part, kind: 'thought' } : part
}

// --- the view ------------------------------------------------------------------------------------------------------------------------------------

const MEANING = { call: 'became a call', thought: 'became a thought', markup: 'not sent to the client' }

export function sidesView(turn) {
  const got = turn.got ?? {}
  const wrote = (turn.wrote ?? '').slice(0, MOST)
  const parts = pieces(wrote, got)
  const cards = (got.calls ?? []).map((call, number) => card(call, number))
  const links = new Map()
  const left = h('pre', {
    class: 'sides-text',
    tabindex: '0',
    role: 'region',
    'aria-label': 'What the model wrote',
  })
  for (const part of parts) {
    if (part.kind === 'text') {
      left.append(...blocks(visible(part.text)))
      continue
    }
    const badges = part.calls.map((number) => {
      const button = h(
        'button',
        {
          type: 'button',
          class: 'sides-number',
          'aria-label': `Call ${number + 1}, ${got.calls[number].name}: show what the client got`,
          onclick: () => meet(cards[number], true),
        },
        number + 1,
      )
      links.set(number, button)
      return button
    })
    left.append(
      h(
        'mark',
        { class: `piece ${part.kind}`, title: MEANING[part.kind] },
        badges,
        part.kind === 'call' ? null : h('span', { class: 'visually-hidden' }, `[${MEANING[part.kind]}: ]`),
        visible(part.text),
      ),
    )
  }
  if ((turn.wrote ?? '').length > MOST)
    left.append(h('p', { class: 'muted' }, `… ${counted(turn.wrote.length - MOST, 'more character')}`))
  if (!wrote) clear(left, h('span', { class: 'muted' }, 'Nothing.'))

  cards.forEach((node, number) => {
    const link = links.get(number)
    if (link) node.querySelector('.sides-number').addEventListener('click', () => meet(link, true))
    else node.querySelector('.sides-number').disabled = true
  })
  const right = h(
    'div',
    { class: 'sides-got' },
    got.thoughts
      ? h(
          'details',
          { class: 'sides-thoughts' },
          h('summary', null, icon('thought', 15), ' Thoughts'),
          h('div', { class: 'sides-words' }, got.thoughts),
        )
      : null,
    got.text
      ? h('div', { class: 'sides-words' }, blocks(got.text.slice(0, MOST)))
      : got.calls?.length
        ? null
        : h('p', { class: 'muted' }, 'Nothing.'),
    cards,
  )

  const side = (title, words, text, body) =>
    h(
      'section',
      { class: 'panel side' },
      h(
        'div',
        { class: 'row between nowrap sides-head' },
        h('div', null, h('h2', null, title), h('p', { class: 'muted small' }, words)),
        copyButton(text),
      ),
      body,
    )
  const marked = parts.some((part) => part.kind === 'call')
  const explained = marked
    ? 'The marked parts became calls, thoughts or nothing; the numbers lead to what came of them.'
    : got.calls?.length
      ? 'The calls came as calls from the backend, so there is no markup in the text.'
      : 'There were no calls in this turn.'
  return h(
    'div',
    { class: 'stack loose' },
    h(
      'div',
      { class: 'chart-legend' },
      h('span', { class: 'piece-key call' }, 'became a call'),
      h('span', { class: 'piece-key thought' }, 'became a thought'),
      h('span', { class: 'piece-key markup' }, 'not sent: wrapping, or dropped by policy'),
    ),
    h(
      'div',
      { class: 'sides' },
      side('What the model wrote', explained, () => turn.wrote ?? '', left),
      side(
        'What the client got',
        'Text, and calls as calls, whatever the model had written.',
        () => JSON.stringify(got, null, 2),
        right,
      ),
    ),
  )
}

/** Long text in blocks of whole lines, so that only what is looked at is laid out. What stands before the first and after the last line stays in line. */
function blocks(words) {
  const out = []
  let from = words.length > BLOCK ? words.indexOf('\n') + 1 : 0
  if (from) out.push(words.slice(0, from))
  while (from && words.length - from > BLOCK) {
    let end = words.lastIndexOf('\n', from + BLOCK) + 1
    if (end <= from) end = words.indexOf('\n', from) + 1
    if (!end) break
    const text = words.slice(from, end)
    out.push(h('span', { class: 'sides-block', vars: { '--lines': text.split('\n').length - 1 } }, text))
    from = end
  }
  out.push(words.slice(from))
  return out
}

function card(call, number) {
  return h(
    'div',
    { class: 'card sides-call', tabindex: '-1' },
    h(
      'div',
      { class: 'row' },
      h(
        'button',
        {
          type: 'button',
          class: 'sides-number',
          'aria-label': `Call ${number + 1}, ${call.name}: show where the model wrote it`,
        },
        number + 1,
      ),
      h('span', { class: 'strong mono' }, call.name),
      h('span', { class: 'muted small mono grow ellipsis', title: call.id }, call.id),
    ),
    h(
      'pre',
      {
        class: 'sides-arguments',
        tabindex: '0',
        role: 'region',
        'aria-label': `Arguments of call ${number + 1}`,
      },
      visible(prettied(call.arguments ?? '')),
    ),
  )
}

/** Brings a node into view, and lights it up for a moment. */
function meet(node, focus) {
  node.scrollIntoView({
    block: 'center',
    behavior: matchMedia('(prefers-reduced-motion: reduce)').matches ? 'auto' : 'smooth',
  })
  if (focus) node.focus({ preventScroll: true })
  const lit = node.closest('.piece') ?? node
  lit.classList.add('lit')
  setTimeout(() => lit.classList.remove('lit'), 1200)
}
