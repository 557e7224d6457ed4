// One list of a turn's rows (frames, events or wire): search in it, and the chosen row whole beside it.
//
// The search goes through the rows page by page and lets the browser breathe in between; the list shows at most the visible ones.

import { bytes, clear, copyButton, counted, h, icon, ms, text } from './dom.js'
import { virtualList } from './virtual.js'
import { offset, ROWS, visible } from './wire-words.js'

const ROW_HEIGHT = 30
const LINE = 320
const LONG_GAP_MS = 250
const SLICE_MS = 8
const MOST_SHOWN = 60_000
const MOST_PRETTY = 400_000

/** Returns {element, pick(index), grow(), close()}. `onpick(index, row)` hears what is looked at. */
export function rowsView(kind, source, onpick = () => {}) {
  const words = ROWS[kind]
  const input = h('input', {
    class: 'input',
    type: 'search',
    placeholder: `Search ${words.title.toLowerCase()}`,
    'aria-label': `Search ${words.title.toLowerCase()}`,
    autocomplete: 'off',
    spellcheck: 'false',
  })
  const found = h('span', { class: 'rows-found', role: 'status' })
  const step = (turned, label, by) =>
    h(
      'button',
      {
        type: 'button',
        class: `button quiet small square ${turned}`,
        'aria-label': label,
        title: label,
        disabled: true,
        onclick: () => jump(by),
      },
      icon('chevron', 15),
    )
  const previous = step('flip', 'Previous match', -1)
  const next = step('', 'Next match', 1)
  const only = h('input', { type: 'checkbox', onchange: () => narrow() })
  const bar = h(
    'div',
    { class: 'rows-bar' },
    h('div', { class: 'rows-search' }, icon('search', 15), input),
    found,
    previous,
    next,
    h('label', { class: 'rows-only' }, only, 'Only matches'),
  )
  const head = h(
    'div',
    { class: 'rows-head', 'aria-hidden': 'true' },
    h('span', { class: 'r-at' }, 'Time s'),
    h('span', { class: 'r-gap' }, 'Gap'),
    h('span', { class: 'r-label' }, 'Label'),
    h('span', null, 'Text'),
  )
  const detail = h('div', { class: 'rows-detail' })
  const list = virtualList({
    label: `${words.title}: ${words.what}`,
    rowHeight: ROW_HEIGHT,
    make,
    draw,
    onpick: picked,
    onview: (first, last) => source.want(place(first), place(last)),
  })
  const element = h(
    'div',
    { class: 'rows' },
    bar,
    h('div', { class: 'rows-body' }, h('div', { class: 'rows-list' }, head, list.element), detail),
  )

  let wanted = ''
  let hits = null
  let hitSet = new Set()
  let search = 0
  let timer = 0
  let chosen = -1
  let pretty = true
  let waiting = false
  let telling = 0

  const off = source.onchange(() => {
    list.resize(length())
    list.redraw()
    if (waiting && source.at(chosen)) tell()
  })
  const none = h('div', { class: 'rows-none muted' })
  list.resize(length())
  idle()

  const place = (position) => (only.checked && hits ? (hits[position] ?? 0) : position)
  function length() {
    return only.checked && hits ? hits.length : source.total
  }

  // --- rows ------------------------------------------------------------------------------------------------------------------------------------

  function make() {
    return h(
      'div',
      null,
      h('span', { class: 'r-at' }),
      h('span', { class: 'r-gap' }),
      h('span', { class: 'r-label' }),
      h('span', { class: 'r-text' }),
    )
  }

  function draw(row, position) {
    const index = place(position)
    const held = source.at(index)
    const [at, gap, label, line] = row.children
    row.classList.toggle('hit', hitSet.has(index))
    row.classList.toggle('loading-row', !held)
    if (!held) {
      at.textContent = gap.textContent = label.textContent = ''
      line.textContent = source.error ? source.error.message : 'loading …'
      return
    }
    const before = index ? source.at(index - 1) : null
    const waited = before ? held[0] - before[0] : null
    at.textContent = offset(held[0])
    gap.textContent = waited === null ? '' : gapWords(waited)
    gap.classList.toggle('long', waited !== null && waited >= LONG_GAP_MS)
    label.textContent = held[1]
    label.dataset.tone = tone(held[1])
    fill(line, held[2])
  }

  function fill(node, whole) {
    if (!wanted) {
      node.textContent = oneLine(gist(whole).slice(0, LINE))
      return
    }
    const at = whole.slice(0, 200_000).toLowerCase().indexOf(wanted)
    if (at < 0) {
      node.textContent = oneLine(whole.slice(0, LINE))
      return
    }
    const from = Math.max(0, at - 40)
    node.replaceChildren(
      (from ? '…' : '') + oneLine(whole.slice(from, at)),
      h('mark', null, whole.slice(at, at + wanted.length)),
      oneLine(whole.slice(at + wanted.length, at + LINE)),
    )
  }

  // --- search ----------------------------------------------------------------------------------------------------------------------------------

  input.addEventListener('input', () => {
    clearTimeout(timer)
    timer = setTimeout(seek, 160)
  })
  input.addEventListener('keydown', (event) => {
    if (event.key === 'Enter') {
      event.preventDefault()
      jump(event.shiftKey ? -1 : 1)
    } else if (event.key === 'Escape' && input.value) {
      event.preventDefault()
      input.value = ''
      seek()
    }
  })

  async function seek() {
    const mine = (search += 1)
    wanted = input.value.toLowerCase()
    hits = null
    hitSet = new Set()
    if (!wanted) {
      text(found, '')
      settle()
      return
    }
    const matches = []
    text(found, 'searching …')
    try {
      let since = performance.now()
      for await (const [first, rows] of source.all()) {
        for (let at = 0; at < rows.length; at += 1) {
          if (rows[at][2].toLowerCase().includes(wanted) || rows[at][1].toLowerCase().includes(wanted))
            matches.push(first + at)
          if (at % 50 === 0 && performance.now() - since > SLICE_MS) {
            await breath()
            if (mine !== search) return
            since = performance.now()
          }
        }
        if (mine !== search) return
      }
    } catch (error) {
      text(found, error.message)
      return
    }
    hits = matches
    hitSet = new Set(matches)
    text(found, counted(matches.length, 'match', 'matches'))
    settle()
    if (matches.length && !hitSet.has(chosen))
      choose(matches.find((index) => index >= Math.max(0, chosen)) ?? matches[0])
  }

  function settle() {
    previous.disabled = next.disabled = !hits?.length
    narrow()
  }

  function narrow() {
    list.resize(length())
    list.redraw()
    list.pick(only.checked && hits ? hits.indexOf(chosen) : chosen, true)
  }

  function jump(by) {
    if (!hits?.length) return
    const after = hits.findIndex((index) => index > chosen)
    const at =
      by > 0
        ? after < 0
          ? 0
          : after
        : (hits.findLastIndex((index) => index < chosen) + hits.length) % hits.length
    choose(hits[at < 0 ? hits.length - 1 : at])
  }

  function choose(index) {
    list.pick(only.checked && hits ? hits.indexOf(index) : index)
  }

  // --- the chosen row --------------------------------------------------------------------------------------------------------------------------

  function picked(position) {
    chosen = place(position)
    source.want(chosen, chosen)
    if (hits?.length && hitSet.has(chosen))
      text(
        found,
        `${(hits.indexOf(chosen) + 1).toLocaleString()} of ${counted(hits.length, 'match', 'matches')}`,
      )
    telling ||= requestAnimationFrame(() => {
      telling = 0
      tell()
    })
  }

  function tell() {
    const row = source.at(chosen)
    waiting = !row
    if (!row) return
    const before = chosen ? source.at(chosen - 1) : null
    const facts = [
      `${offset(row[0])} s`,
      before ? `${gapWords(row[0] - before[0])} after the one before` : null,
      bytes(new Blob([row[2]]).size),
    ]
      .filter(Boolean)
      .join(' · ')
    const view = pretty ? prettied(row[2]) : row[2]
    const code = h('code', null, visible(view.slice(0, MOST_SHOWN)))
    const toggle = h(
      'button',
      {
        type: 'button',
        class: 'button quiet small',
        'aria-pressed': pretty,
        onclick: () => {
          pretty = !pretty
          tell()
          detail.querySelector('[aria-pressed]').focus()
        },
      },
      'Pretty',
    )
    const more =
      view.length > MOST_SHOWN
        ? h(
            'button',
            {
              type: 'button',
              class: 'button small',
              onclick: () => {
                code.textContent = visible(view)
                more.remove()
              },
            },
            `${(view.length - MOST_SHOWN).toLocaleString()} more characters`,
          )
        : null
    clear(
      detail,
      h(
        'div',
        { class: 'rows-detail-head' },
        h(
          'div',
          null,
          h(
            'h3',
            null,
            `${cap(words.one)} ${(chosen + 1).toLocaleString()}`,
            ' ',
            h('span', { class: 'r-label', dataset: { tone: tone(row[1]) } }, row[1]),
          ),
          h('p', { class: 'muted small' }, facts),
        ),
        h(
          'div',
          { class: 'row tight nowrap' },
          toggle,
          copyButton(() => row[2]),
        ),
      ),
      h(
        'pre',
        {
          class: 'rows-text',
          tabindex: '0',
          role: 'region',
          'aria-label': `${cap(words.one)} ${chosen + 1}, whole`,
        },
        code,
      ),
      more,
    )
    onpick(chosen, row)
  }

  function idle() {
    text(
      none,
      `Choose a ${words.one} to read it whole. The arrow keys, Page Up and Page Down, Home and End move in the list.`,
    )
    clear(detail, none)
  }

  return {
    element,
    pick(index) {
      if (only.checked) {
        only.checked = false
        narrow()
      }
      list.pick(index)
    },
    focus: () => list.element.focus(),
    close() {
      off()
      search += 1
      clearTimeout(timer)
      cancelAnimationFrame(telling)
      list.close()
    },
  }
}

const breath = () => new Promise((done) => setTimeout(done))
const cap = (word) => word[0].toUpperCase() + word.slice(1)
const oneLine = (words) => visible(words.replace(/\s*[\r\n]+\s*/g, ' ⏎ '))

function gapWords(count) {
  if (count < 0.05) return '0'
  return count < 10 ? `${count.toFixed(1)} ms` : ms(count)
}

function tone(label) {
  if (/^Call|tool_call|function_call/.test(label)) return 'call'
  if (/^Thought|reasoning/.test(label)) return 'thought'
  if (/^(Text|Refusal)\b|output_text/.test(label)) return 'text'
  if (/^Failure|error|failed/i.test(label)) return 'bad'
  return 'other'
}

/** What is new in a chunk: of chat completions the delta, not what every chunk repeats. The whole stands in the chosen row. */
function gist(words) {
  const at = words.indexOf('{')
  if (at < 0 || at > 12 || words.length > 8000 || !words.includes('"choices"')) return words
  try {
    const { choices, usage } = JSON.parse(words.slice(at))
    const [{ index, delta, message, finish_reason: finish }] = choices
    const told = [
      JSON.stringify(delta ?? message),
      index ? `index ${index}` : '',
      finish ? `finish ${finish}` : '',
      usage ? `usage ${JSON.stringify(usage)}` : '',
    ]
    return `${words.slice(0, at)}… ${told.filter(Boolean).join(' · ')}`
  } catch {
    return words
  }
}

/** JSON with line breaks; of server-sent events the data of each. What is no JSON stays as it is. */
export function prettied(words) {
  if (words.length > MOST_PRETTY) return words
  const whole = spread(words)
  if (whole !== null) return whole
  if (!/^(?:data|event|id|retry|:)/m.test(words)) return words
  return words
    .split('\n')
    .map((line) => {
      const [, name, rest] = /^(data: ?)([[{].*)$/.exec(line) ?? []
      const data = name ? spread(rest) : null
      return data === null ? line : name + data
    })
    .join('\n')
}

function spread(words) {
  if (!/^\s*[[{]/.test(words)) return null
  try {
    return JSON.stringify(JSON.parse(words), null, 2)
  } catch {
    return null
  }
}
