// What a line of Markdown says about itself. Pure: text in, facts out; every pattern is linear over a line.

export const QUOTE = /^ {0,3}> ?/
export const ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])( +|$)/
export const RULE = /^ {0,3}([-*_])(?: *\1){2,} *$/
export const FENCE = /^( {0,3})(`{3,}|~{3,}) *([^`\n]{0,200})$/
export const HEADING = /^ {0,3}(#{1,6})(?= |$)/
export const DELIMITERS = /^\|?(?: *:?-+:? *\|)+ *(?::?-+:?)?$/

/** The line with the tabs at its beginning as spaces. */
export function spaces(line) {
  const lead = /^[ \t]*/.exec(line)[0]
  if (!lead.includes('\t')) return line
  let width = 0
  for (const char of lead) width += char === '\t' ? 4 - (width % 4) : 1
  return ' '.repeat(width) + line.slice(lead.length)
}

/** What is left of a line within a container that it goes on, else null. */
export function continued(container, rest) {
  if (container.kind === 'list') return rest
  if (container.kind === 'quote') {
    const found = QUOTE.exec(rest)
    return found ? rest.slice(found[0].length) : null
  }
  if (!rest.trim()) return rest
  const indent = rest.length - rest.trimStart().length
  if (indent >= container.indent) return rest.slice(container.indent)
  return indent >= container.least && ITEM.test(rest.trimStart()) ? rest.trimStart() : null
}

export function kindOf(mark) {
  return mark.length === 1 ? mark : mark.at(-1)
}

/** Within a paragraph a number begins a list only when it is 1, and an empty mark never. */
export function interrupts(item, rest) {
  return rest.trim().length > item[2].length && (!/\d/.test(item[2]) || parseInt(item[2], 10) === 1)
}

export function starts(rest) {
  if (QUOTE.test(rest) || RULE.test(rest) || HEADING.test(rest) || FENCE.test(rest)) return true
  return ITEM.test(rest)
}

/** The cells of a table's row. */
export function cells(line) {
  const out = []
  let cell = ''
  let code = false
  const row = line
    .trim()
    .replace(/^\|/, '')
    .replace(/(^|[^\\])\|$/, '$1')
  for (let at = 0; at < row.length && out.length < 100; at += 1) {
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
