// Markdown within a line of thought: emphasis, code, links. From text to nodes; never through markup.
//
// One pass from left to right over a stack of what is open, which is bounded: work is linear in the text, whatever it holds. What is never closed was
// no markup and stands as it was written. A link leads to http, https or mail only, and is never followed by the page; pictures are links too.

import { h } from './dom.js'

const MOST_OPEN = 48
const MOST_TARGET = 2_000
const PROTOCOLS = new Set(['http:', 'https:', 'mailto:'])
const ESCAPABLE = /[!-/:-@[-`{-~]/
const SPACE = /\s/
const WORD = /[\p{L}\p{N}_]/u
const SPECIAL = /[\\`*_~[\]!<&\nhHwW]/g
const ADDRESS = /(?:https?:\/\/|www\.)[^\s<>"'`|\\^{}]{1,2000}/iy
const ANGLE = /<((?:https?:\/\/|mailto:)[^\s<>]{1,2000})>/iy
const ENTITY =
  /&(?:(amp|lt|gt|quot|apos|nbsp|hellip|mdash|ndash|copy|rarr|larr|times|middot|bull)|#(\d{1,7})|#x([0-9a-f]{1,6}));/iy
const ENTITIES = {
  amp: '&',
  lt: '<',
  gt: '>',
  quot: '"',
  apos: "'",
  nbsp: '\u00a0',
  hellip: '…',
  mdash: '—',
  ndash: '–',
  copy: '©',
  rarr: '→',
  larr: '←',
  times: '×',
  middot: '·',
  bull: '•',
}
const TAGS = { '*': 'em', _: 'em', '**': 'strong', __: 'strong', '~~': 'del' }

/** The text as nodes. `unfinished`: more will come, so what is strong already looks strong before it is closed. */
export function inline(source, unfinished = false) {
  return new Inline(source).run(unfinished)
}

/** The text as nodes, and whether nothing in it is left open: then what follows changes none of them. */
export function settled(source) {
  const reading = new Inline(source)
  return { nodes: reading.run(false), whole: reading.whole }
}

/** An address that may stand in a link, or null. */
export function target(written) {
  const address = written.trim()
  if (!/^(?:https?:\/\/|mailto:)/i.test(address)) return null
  try {
    const parsed = new URL(address)
    return PROTOCOLS.has(parsed.protocol) ? parsed.href : null
  } catch {
    return null
  }
}

export function link(href, ...children) {
  return h('a', { href, rel: 'noopener noreferrer nofollow', target: '_blank', title: href }, ...children)
}

class Inline {
  constructor(source) {
    this.source = source
    this.at = 0
    this.words = ''
    this.open = [{ kind: 'root', mark: '', nodes: [] }]
    this.ticks = null
    this.whole = true
    this.lastClosing = source.lastIndexOf(')') // behind it no link ends
  }

  run(unfinished) {
    const { source } = this
    while (this.at < source.length) {
      SPECIAL.lastIndex = this.at
      const found = SPECIAL.exec(source)
      const next = found === null ? source.length : found.index
      this.words += source.slice(this.at, next)
      this.at = next
      if (found !== null && !this.special(source[next])) {
        this.words += source[this.at]
        this.at += 1
      }
    }
    this.flush()
    this.whole &&= this.open.length === 1
    while (this.open.length > 1) {
      const last = this.open.at(-1)
      if (unfinished && (last.kind === '**' || last.kind === '__') && last.nodes.length) this.close(last.kind)
      else this.flatten()
    }
    return this.open[0].nodes
  }

  /** Whether a mark was read; else its first character is text. */
  special(char) {
    switch (char) {
      case '\\':
        return this.escape()
      case '`':
        return this.code()
      case '*':
      case '_':
      case '~':
        return this.emphasis(char)
      case '[':
        return this.bracket()
      case ']':
        return this.unbracket()
      case '!':
        return this.source[this.at + 1] === '[' && this.push('image', '![')
      case '<':
        return this.angle()
      case '&':
        return this.entity()
      case '\n':
        return this.newline()
      default:
        return this.address()
    }
  }

  flush() {
    if (this.words) this.open.at(-1).nodes.push(this.words)
    this.words = ''
  }

  put(node, length) {
    this.flush()
    this.open.at(-1).nodes.push(node)
    this.at += length
    return true
  }

  push(kind, mark) {
    if (this.open.length > MOST_OPEN) return false
    this.flush()
    this.open.push({ kind, mark, nodes: [], from: this.at })
    this.at += mark.length
    return true
  }

  /** The innermost of what is open was no markup: its mark is text. */
  flatten() {
    const { mark, nodes } = this.open.pop()
    this.open.at(-1).nodes.push(mark, ...nodes)
  }

  has(kind) {
    return this.open.some((one) => one.kind === kind)
  }

  close(kind) {
    this.flush()
    while (this.open.at(-1).kind !== kind) this.flatten()
    const { nodes } = this.open.pop()
    this.open.at(-1).nodes.push(h(TAGS[kind], null, ...nodes))
  }

  // --- marks -----------------------------------------------------------------------------------------------------------------------------------

  escape() {
    const next = this.source[this.at + 1]
    if (next === '\n') return this.put(h('br'), 2)
    if (next === undefined || !ESCAPABLE.test(next)) return false
    this.words += next
    this.at += 2
    return true
  }

  newline() {
    this.words = this.words.trimEnd()
    return this.put(h('br'), 1)
  }

  code() {
    this.ticks ??= ticks(this.source)
    const length = run(this.source, this.at, '`')
    const places = this.ticks.get(length)
    while (places.next < places.at.length && places.at[places.next] <= this.at) places.next += 1
    const end = places.at[places.next]
    if (end === undefined) {
      this.whole = false
      this.words += '`'.repeat(length)
      this.at += length
      return true
    }
    let inside = this.source.slice(this.at + length, end).replaceAll('\n', ' ')
    if (inside.startsWith(' ') && inside.endsWith(' ') && inside.trim()) inside = inside.slice(1, -1)
    return this.put(h('code', null, inside), end + length - this.at)
  }

  emphasis(char) {
    const length = run(this.source, this.at, char)
    const before = this.source[this.at - 1] ?? ' '
    const after = this.source[this.at + length] ?? ' '
    const inWord = char === '_' && WORD.test(before) && WORD.test(after)
    const opens = !SPACE.test(after) && !inWord && !(char === '_' && WORD.test(before))
    const closes = !SPACE.test(before) && !inWord
    let left = char === '~' ? (length === 2 ? 2 : 0) : length > 3 ? 0 : length
    if (left === 0) return this.literal(char, length)
    if (closes) left = this.closed(char, left)
    if (left && opens) {
      this.at += length - left
      for (const size of left === 3 ? [2, 1] : [left])
        if (!this.push(char.repeat(size), char.repeat(size))) this.literal(char, size)
      return true
    }
    this.at += length - left
    return left ? this.literal(char, left) : true
  }

  /** Closes what a run of so many closes; how many are left over. */
  closed(char, left) {
    for (let place = this.open.length - 1; place > 0 && left > 0; place -= 1) {
      const { kind, nodes } = this.open[place]
      if (kind[0] !== char || TAGS[kind] === undefined || kind.length > left) continue
      if (place === this.open.length - 1 && !nodes.length && !this.words) continue
      this.close(kind)
      left -= kind.length
      place = this.open.length
    }
    return left
  }

  literal(char, length) {
    this.words += char.repeat(length)
    this.at += length
    return true
  }

  bracket() {
    if (this.source[this.at + 1] === '[') {
      const end = this.source.slice(this.at + 2, this.at + 302).search(/\]\]|\n|\[/)
      if (end > 0 && this.source.startsWith(']]', this.at + 2 + end)) {
        const [note, alias] = this.source.slice(this.at + 2, this.at + 2 + end).split('|', 2)
        return this.put(h('span', { class: 'wikilink', title: note }, alias?.trim() || note), end + 4)
      }
    }
    return this.push('link', '[')
  }

  unbracket() {
    let place = this.open.length - 1
    while (place > 0 && this.open[place].kind !== 'link' && this.open[place].kind !== 'image') place -= 1
    if (place === 0) return false
    this.flush()
    const found =
      this.source[this.at + 1] === '(' && this.at < this.lastClosing
        ? destination(this.source, this.at + 2)
        : null
    const href = found && target(found.address)
    while (this.open.length - 1 > place) this.flatten()
    if (!href) {
      this.flatten()
      return false
    }
    const { kind, nodes } = this.open.pop()
    for (const one of this.open) if (one.kind === 'link') one.kind = 'spent' // no links within links
    const label =
      kind === 'image'
        ? [h('span', { class: 'image-mark' }, 'Image: '), ...(nodes.length ? nodes : [href])]
        : nodes.length
          ? nodes
          : [href]
    return this.put(link(href, ...label), found.end - this.at)
  }

  angle() {
    ANGLE.lastIndex = this.at
    const found = ANGLE.exec(this.source)
    const href = found && target(found[1])
    return href ? this.put(link(href, found[1].replace(/^mailto:/i, '')), found[0].length) : false
  }

  entity() {
    ENTITY.lastIndex = this.at
    const found = ENTITY.exec(this.source)
    if (!found) return false
    const code = found[2] ? Number(found[2]) : parseInt(found[3] ?? '', 16)
    const char = found[1]
      ? ENTITIES[found[1].toLowerCase()]
      : code > 31 && code <= 0x10ffff && !(code >= 0xd800 && code < 0xe000)
        ? String.fromCodePoint(code)
        : null
    if (char === null) return false
    this.words += char
    this.at += found[0].length
    return true
  }

  address() {
    if (this.at > 0 && WORD.test(this.source[this.at - 1])) return false
    ADDRESS.lastIndex = this.at
    const found = ADDRESS.exec(this.source)
    if (!found || this.has('link')) return false
    let written = found[0].replace(/[.,;:!?*_~\]]+$/, '')
    while (written.endsWith(')') && written.split(')').length > written.split('(').length)
      written = written.slice(0, -1)
    const href = target(/^www\./i.test(written) ? `https://${written}` : written)
    return href && /[^/:.]$|\/$/.test(written) && (written.includes('.', 4) || written.includes('//'))
      ? this.put(link(href, written), written.length)
      : false
  }
}

function run(source, from, char) {
  let end = from
  while (source[end] === char) end += 1
  return end - from
}

/** Where runs of backticks begin, by their length. */
function ticks(source) {
  const out = new Map()
  for (const {
    0: { length },
    index,
  } of source.matchAll(/`+/g)) {
    if (!out.has(length)) out.set(length, { at: [], next: 0 })
    out.get(length).at.push(index)
  }
  return out
}

/** What stands between the parentheses of a link: the address, and where they end. */
function destination(source, from) {
  const piece = source.slice(from, from + MOST_TARGET)
  const angled = /^\s*<([^<>\n]*)>/.exec(piece)
  let depth = 0
  let end = angled ? angled[0].length : 0
  for (; end < piece.length; end += 1) {
    const char = piece[end]
    if (char === '\n') return null
    if (char === '(') depth += 1
    if (char === ')' && depth-- === 0) break
  }
  if (end >= piece.length) return null
  const address = angled ? angled[1] : piece.slice(0, end).replace(/\s+(?:"[^"]*"|'[^']*')\s*$/, '')
  return { address, end: from + end + 1 }
}
