// Markdown inside a block: emphasis, code, links. It makes nodes from text, and no HTML in between.
//
// One pass from left to right over a stack of open marks. The stack is bounded, so work is linear in the
// text. A mark that is never closed is text. A link leads only to an http, https or mail address, and the
// page never opens it by itself. A picture becomes a link, too.

import { h } from './dom.js'
import { addressAt, link, target } from './links.js'

const MOST_OPEN = 48
const LONGEST_TARGET = 2_000
const LONGEST_WIKILINK = 300
const ESCAPABLE = /[!-/:-@[-`{-~]/
const SPACE = /\s/
const WORD = /[\p{L}\p{N}_]/u
const SPECIAL = /[\\`*_~[\]!<&\nhHwW]/g
const ANGLE = /<((?:https?:\/\/|mailto:)[^\s<>]{1,2000})>/iy
const ENTITIES = new Map([
  ['amp', '&'],
  ['lt', '<'],
  ['gt', '>'],
  ['quot', '"'],
  ['apos', "'"],
  ['nbsp', '\u00a0'],
  ['hellip', '…'],
  ['mdash', '—'],
  ['ndash', '–'],
  ['copy', '©'],
  ['rarr', '→'],
  ['larr', '←'],
  ['times', '×'],
  ['middot', '·'],
  ['bull', '•'],
])
const ENTITY = new RegExp(`&(?:(${[...ENTITIES.keys()].join('|')})|#(\\d{1,7})|#x([0-9a-f]{1,6}));`, 'iy')
/** @type {Map<string, 'em' | 'strong' | 'del'>} */
const TAGS = new Map([
  ['*', 'em'],
  ['_', 'em'],
  ['**', 'strong'],
  ['__', 'strong'],
  ['~~', 'del'],
])

/**
 * An open mark with the nodes after it. `kind` is the mark itself, 'root', 'link', 'image', or 'used' for a
 * bracket around a link.
 *
 * @typedef {{ kind: string, mark: string, nodes: Piece[] }} Open
 */
/** @typedef {string | HTMLElement} Piece */

/**
 * The text as nodes. With `unfinished`, more text will follow, so strong text is shown as such before it is
 * closed.
 *
 * @param {string} source
 * @param {boolean} [unfinished]
 */
export function inline(source, unfinished = false) {
  return new Inline(source).run(unfinished)
}

/**
 * The text as nodes, and whether every mark in it is closed, so that later text cannot change them.
 *
 * @param {string} source
 */
export function settled(source) {
  const reader = new Inline(source)
  return { nodes: reader.run(false), closed: reader.closed }
}

class Inline {
  at = 0
  text = ''
  /** Whether every mark so far is closed. */
  closed = true
  /** @type {Map<number, { starts: number[], next: number }> | null} runs of backticks by their length */
  ticks = null

  /** @param {string} source */
  constructor(source) {
    this.source = source
    /** @type {Open[]} */
    this.open = [{ kind: 'root', mark: '', nodes: [] }]
    this.lastParenthesis = source.lastIndexOf(')') // no link ends after it
  }

  /** @param {boolean} unfinished */
  run(unfinished) {
    const { source } = this
    while (this.at < source.length) {
      SPECIAL.lastIndex = this.at
      const found = SPECIAL.exec(source)
      const next = found === null ? source.length : found.index
      this.text += source.slice(this.at, next)
      this.at = next
      if (found !== null && !this.special(source[next])) {
        this.text += source[this.at]
        this.at += 1
      }
    }
    this.flush()
    this.closed &&= this.open.length === 1
    while (this.open.length > 1) {
      const { kind, nodes } = this.top
      if (unfinished && (kind === '**' || kind === '__') && nodes.length) this.close(kind)
      else this.flatten()
    }
    return this.top.nodes
  }

  get top() {
    return this.open[this.open.length - 1]
  }

  /** Reads a mark. Returns false if its first character is text. @param {string} char */
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
        return this.openBracket()
      case ']':
        return this.closeBracket()
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
    if (this.text) this.top.nodes.push(this.text)
    this.text = ''
  }

  /** Adds a node that stands for `length` characters. @param {HTMLElement} node @param {number} length */
  put(node, length) {
    this.flush()
    this.top.nodes.push(node)
    this.at += length
    return true
  }

  /** @param {string} kind @param {string} mark */
  push(kind, mark) {
    if (this.open.length > MOST_OPEN) return false
    this.flush()
    this.open.push({ kind, mark, nodes: [] })
    this.at += mark.length
    return true
  }

  /** Makes the innermost open mark text. */
  flatten() {
    const { mark, nodes } = this.top
    this.open.pop()
    this.top.nodes.push(mark, ...nodes)
  }

  /** @param {string} kind */
  has(kind) {
    return this.open.some((one) => one.kind === kind)
  }

  /** Closes the innermost mark of this kind. @param {string} kind */
  close(kind) {
    this.flush()
    while (this.top.kind !== kind) this.flatten()
    const { nodes } = this.top
    this.open.pop()
    this.top.nodes.push(h(TAGS.get(kind) ?? 'em', null, ...nodes))
  }

  // --- marks -----------------------------------------------------------------------------------------------

  escape() {
    const next = this.source[this.at + 1]
    if (next === '\n') return this.put(h('br'), 2)
    if (next === undefined || !ESCAPABLE.test(next)) return false
    this.text += next
    this.at += 2
    return true
  }

  newline() {
    this.text = this.text.trimEnd()
    return this.put(h('br'), 1)
  }

  code() {
    this.ticks ??= tickRuns(this.source)
    const length = runLength(this.source, this.at, '`')
    const runs = this.ticks.get(length) ?? { starts: [], next: 0 }
    while (runs.next < runs.starts.length && runs.starts[runs.next] <= this.at) runs.next += 1
    const end = runs.starts[runs.next]
    if (end === undefined) {
      this.closed = false
      return this.literal('`', length)
    }
    let inside = this.source.slice(this.at + length, end).replaceAll('\n', ' ')
    if (inside.startsWith(' ') && inside.endsWith(' ') && inside.trim()) inside = inside.slice(1, -1)
    return this.put(h('code', null, inside), end + length - this.at)
  }

  /** @param {string} char */
  emphasis(char) {
    const length = runLength(this.source, this.at, char)
    const before = this.source[this.at - 1] ?? ' '
    const after = this.source[this.at + length] ?? ' '
    const inWord = char === '_' && WORD.test(before) && WORD.test(after)
    const opens = !SPACE.test(after) && !inWord && !(char === '_' && WORD.test(before))
    const closes = !SPACE.test(before) && !inWord
    let left = char === '~' ? (length === 2 ? 2 : 0) : length > 3 ? 0 : length
    if (left === 0) return this.literal(char, length)
    if (closes) left = this.closeRun(char, left)
    this.at += length - left
    if (!left) return true
    if (!opens) return this.literal(char, left)
    for (const size of left === 3 ? [2, 1] : [left]) {
      const mark = char.repeat(size)
      if (!this.push(mark, mark)) this.literal(char, size)
    }
    return true
  }

  /**
   * Closes marks by a run of `left` characters, and returns how many are not used.
   *
   * @param {string} char
   * @param {number} left
   */
  closeRun(char, left) {
    let unused = left
    for (let at = this.open.length - 1; at > 0 && unused > 0; at -= 1) {
      const { kind, nodes } = this.open[at]
      if (kind[0] !== char || !TAGS.has(kind) || kind.length > unused) continue
      if (at === this.open.length - 1 && !nodes.length && !this.text) continue
      this.close(kind)
      unused -= kind.length
      at = this.open.length
    }
    return unused
  }

  /** @param {string} char @param {number} length */
  literal(char, length) {
    this.text += char.repeat(length)
    this.at += length
    return true
  }

  openBracket() {
    return this.wikilink() || this.push('link', '[')
  }

  /** `[[Note]]` or `[[Note|shown]]`, as Obsidian writes a link to a note. */
  wikilink() {
    if (this.source[this.at + 1] !== '[') return false
    const from = this.at + 2
    const length = this.source.slice(from, from + LONGEST_WIKILINK).search(/\]\]|\n|\[/)
    if (length <= 0 || !this.source.startsWith(']]', from + length)) return false
    const [note, alias] = this.source.slice(from, from + length).split('|', 2)
    return this.put(h('span', { class: 'wikilink', title: note }, alias?.trim() || note), length + 4)
  }

  closeBracket() {
    let at = this.open.length - 1
    while (at > 0 && this.open[at].kind !== 'link' && this.open[at].kind !== 'image') at -= 1
    if (at === 0) return false
    this.flush()
    const mayLink = this.source[this.at + 1] === '(' && this.at < this.lastParenthesis
    const found = mayLink ? destination(this.source, this.at + 2) : null
    const href = found && target(found.address)
    while (this.open.length - 1 > at) this.flatten()
    if (!found || !href) {
      this.flatten()
      return false
    }
    const { kind, nodes } = this.top
    this.open.pop()
    for (const one of this.open) if (one.kind === 'link') one.kind = 'used' // a link contains no link
    const label = nodes.length ? nodes : [href]
    const mark = kind === 'image' ? h('span', { class: 'image-mark' }, 'Image: ') : null
    return this.put(link(href, mark, ...label), found.end - this.at)
  }

  /** `<https://…>` */
  angle() {
    ANGLE.lastIndex = this.at
    const found = ANGLE.exec(this.source)
    const href = found && target(found[1])
    if (!found || !href) return false
    return this.put(link(href, found[1].replace(/^mailto:/i, '')), found[0].length)
  }

  entity() {
    ENTITY.lastIndex = this.at
    const found = ENTITY.exec(this.source)
    if (!found) return false
    const [all, name, decimal, hex] = found
    const char = name
      ? ENTITIES.get(name.toLowerCase())
      : fromCode(decimal ? Number(decimal) : Number.parseInt(hex, 16))
    if (char === undefined) return false
    this.text += char
    this.at += all.length
    return true
  }

  /** A bare address in the text. */
  address() {
    if (this.has('link')) return false
    const found = addressAt(this.source, this.at)
    return found ? this.put(link(found.href, found.written), found.written.length) : false
  }
}

/** A character that is neither a control nor half of a surrogate pair. @param {number} code */
function fromCode(code) {
  const valid = code > 31 && code <= 0x10ffff && !(code >= 0xd800 && code < 0xe000)
  return valid ? String.fromCodePoint(code) : undefined
}

/** @param {string} source @param {number} from @param {string} char */
function runLength(source, from, char) {
  let end = from
  while (source[end] === char) end += 1
  return end - from
}

/** Where runs of backticks start, by their length. @param {string} source */
function tickRuns(source) {
  /** @type {Map<number, { starts: number[], next: number }>} */
  const out = new Map()
  for (const found of source.matchAll(/`+/g)) {
    const { length } = found[0]
    const runs = out.get(length) ?? { starts: [], next: 0 }
    runs.starts.push(found.index)
    out.set(length, runs)
  }
  return out
}

/**
 * The address in the parentheses of a link, and where they end.
 *
 * @param {string} source
 * @param {number} from
 */
function destination(source, from) {
  const piece = source.slice(from, from + LONGEST_TARGET)
  const angled = /^\s*<([^<>\n]*)>/.exec(piece)
  let depth = 0
  let end = angled ? angled[0].length : 0
  for (; end < piece.length; end += 1) {
    const char = piece[end]
    if (char === '\n') return null
    if (char === '(') depth += 1
    if (char !== ')') continue
    if (depth === 0) break
    depth -= 1
  }
  if (end >= piece.length) return null
  const address = angled ? angled[1] : piece.slice(0, end).replace(/\s+(?:"[^"]*"|'[^']*')\s*$/, '')
  return { address, end: from + end + 1 }
}
