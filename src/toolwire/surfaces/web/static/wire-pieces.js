// Pure functions that compare the model's text with what the client received, and find what each piece
// became.
//
// A piece that the client did not receive as text is the markup of a call or a thought, or was dropped by
// Toolwire.

/** @import { Received, ReceivedCall } from '../types' */

const ANCHOR = 24
const CLOSING_MARK = /<\/[^\s<>]{1,80}>|```|\[\/[A-Z_]{1,40}\]|<\|[^|<>]{1,60}\|>/g

/**
 * A piece of the model's text. `calls` are the numbers of the calls that it became. A piece of the kind
 * `markup` was not sent to the client: it is the markup around a call, or was dropped.
 *
 * @typedef {{ kind: 'text' | 'call' | 'thought' | 'markup', text: string, calls: number[] }} Piece
 */

/**
 * The model's text in pieces. Joined, the pieces are the whole text.
 *
 * @param {string} wrote
 * @param {Received} received
 * @returns {Piece[]}
 */
export function pieces(wrote, received) {
  /** @type {Piece[]} */
  const out = []
  let call = 0
  for (const { kept, text } of split(wrote, received.text ?? '')) {
    if (kept) {
      out.push({ kind: 'text', text, calls: [] })
      continue
    }
    const found = splitCalls(text, received.calls ?? [], call)
    call = found.next
    for (const piece of found.pieces) {
      const isThought = piece.kind === 'markup' && containsThought(piece.text, received.thoughts ?? '')
      out.push(isThought ? { ...piece, kind: 'thought' } : piece)
    }
  }
  return out
}

/**
 * Cuts the model's text into parts that are also in the client's text, and parts that are not.
 *
 * @param {string} wrote
 * @param {string} text
 */
function split(wrote, text) {
  /** @type {{ kept: boolean, text: string }[]} */
  const out = []
  let at = 0
  let seen = 0
  /** @param {boolean} kept @param {number} from @param {number} to */
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

/**
 * Splits a part of markup into its calls. A call starts where the first characters of the part appear again
 * before the name of the next call. If they do not appear again, several calls share a piece.
 *
 * @param {string} part
 * @param {ReceivedCall[]} all
 * @param {number} first the number of the first call to look for
 */
function splitCalls(part, all, first) {
  /** @type {{ start: number, calls: number[] }[]} */
  const found = []
  const opening = part.trimStart().slice(0, 3)
  let next = first
  let from = 0
  let lastName = -1
  for (; next < all.length; next += 1) {
    const { name } = all[next]
    const at = name ? nameAt(part, name, from) : -1
    if (at < 0) break
    const start = found.length ? part.lastIndexOf(opening, at) : part.indexOf(opening)
    const group = found.at(-1)
    if (group && start <= lastName) group.calls.push(next)
    else found.push({ start: Math.max(0, start), calls: [next] })
    lastName = at
    from = at + name.length
  }
  if (!found.length) return { next, pieces: [markup(part)] }
  const tail = tailAt(part, from)
  /** @type {Piece[]} */
  const out = found[0].start > 0 ? [markup(part.slice(0, found[0].start))] : []
  found.forEach(({ start, calls }, number) => {
    out.push({ kind: 'call', text: part.slice(start, found[number + 1]?.start ?? tail), calls })
  })
  if (tail < part.length) out.push(markup(part.slice(tail)))
  return { next, pieces: out }
}

/** @param {string} text @returns {Piece} */
const markup = (text) => ({ kind: 'markup', text, calls: [] })

/**
 * The position of a name in a part, as plain text or as JSON writes it; -1 if it is not there.
 *
 * @param {string} part
 * @param {string} name
 * @param {number} from
 */
function nameAt(part, name, from) {
  const plain = part.indexOf(name, from)
  return plain >= 0 ? plain : part.indexOf(JSON.stringify(name).slice(1, -1), from)
}

/**
 * Where the last call's markup ends: after the first closing mark that is followed by white space or the end.
 *
 * @param {string} part
 * @param {number} from
 */
function tailAt(part, from) {
  const marks = new RegExp(CLOSING_MARK)
  marks.lastIndex = Math.min(part.length, from)
  let end = part.length
  for (let found = marks.exec(part); found; found = marks.exec(part)) {
    end = found.index + found[0].length
    if (/^(?:\s|$)/.test(part.slice(end))) break
  }
  return end
}

/** @param {string} part @param {string} thoughts */
function containsThought(part, thoughts) {
  const start = thoughts.trim().slice(0, ANCHOR)
  return start !== '' && part.includes(start)
}
