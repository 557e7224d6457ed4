// Pure functions that find what a single line of Markdown is. The time of every pattern is linear in the
// length of the line.

export const QUOTE = /^ {0,3}> ?/
export const ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])( +|$)/
export const RULE = /^ {0,3}([-*_])(?: *\1){2,} *$/
export const FENCE = /^( {0,3})(`{3,}|~{3,}) *([^`\n]{0,200})$/
export const HEADING = /^ {0,3}(#{1,6})(?= |$)/
export const DELIMITERS = /^\|?(?: *:?-+:? *\|)+ *(?::?-+:?)?$/
const MOST_CELLS = 100

/**
 * A quote, a list or an item of a list that is open.
 *
 * `indent` of an item: how far its lines are indented; `least`: the smallest indent of an item nested in it.
 *
 * @typedef {{ kind: 'quote' } | { kind: 'list' } | { kind: 'item', indent: number, least: number }} Container
 */

/**
 * Where a text that is too long is cut: after at most `most` characters, and not inside a surrogate pair.
 *
 * @param {string} text
 * @param {number} from
 * @param {number} most
 */
export function cutPoint(text, from, most) {
  const end = Math.min(text.length, from + most)
  const inPair =
    end < text.length && /[\ud800-\udbff]/.test(text[end - 1]) && /[\udc00-\udfff]/.test(text[end])
  return inPair ? end - 1 : end
}

/** The line with the tabs at its start as spaces. @param {string} line */
export function spaces(line) {
  const lead = /^[ \t]*/.exec(line)?.[0] ?? ''
  if (!lead.includes('\t')) return line
  let width = 0
  for (const char of lead) width += char === '\t' ? 4 - (width % 4) : 1
  return ' '.repeat(width) + line.slice(lead.length)
}

/**
 * The rest of a line that belongs to a container, or null if it does not.
 *
 * @param {Container} container
 * @param {string} rest
 */
export function continued(container, rest) {
  if (container.kind === 'list') return rest
  if (container.kind === 'quote') {
    const found = QUOTE.exec(rest)
    return found ? rest.slice(found[0].length) : null
  }
  const trimmed = rest.trimStart()
  if (!trimmed) return rest
  const indent = rest.length - trimmed.length
  if (indent >= container.indent) return rest.slice(container.indent)
  return indent >= container.least && ITEM.test(trimmed) ? trimmed : null
}

/**
 * The mark that all items of a list share: the bullet, or the character after the number.
 *
 * @param {string} mark
 */
export function markerOf(mark) {
  return mark.slice(-1)
}

/**
 * Whether an item ends a paragraph: in a paragraph only the number 1 starts a list, and an empty item never
 * does.
 *
 * @param {string} mark
 * @param {string} rest
 */
export function interrupts(mark, rest) {
  return rest.trim().length > mark.length && (!/\d/.test(mark) || Number.parseInt(mark, 10) === 1)
}

/** Whether a line starts a block, so that it does not continue a paragraph. @param {string} rest */
export function startsBlock(rest) {
  return [QUOTE, RULE, HEADING, FENCE, ITEM].some((pattern) => pattern.test(rest))
}

/** The cells of a table row. @param {string} line */
export function cells(line) {
  const out = []
  let cell = ''
  let code = false
  const row = line
    .trim()
    .replace(/^\|/, '')
    .replace(/(^|[^\\])\|$/, '$1')
  for (let at = 0; at < row.length && out.length < MOST_CELLS; at += 1) {
    const char = row[at]
    if (char === '\\' && row[at + 1] === '|') {
      cell += '|'
      at += 1
    } else if (char === '|' && !code) {
      out.push(cell.trim())
      cell = ''
    } else {
      if (char === '`') code = !code
      cell += char
    }
  }
  out.push(cell.trim())
  return out
}
