// What a turn's page shows besides its lists: the overview, the request, what a replay gave, and what is said when contents are gone.

import { banner, codeBlock, copyButton, counted, h, icon, ms, strategyBadge } from './dom.js'
import { jsonText, jsonTree } from './wire-json.js'
import { DISPOSITIONS, DROPS, failureWords, finishOf, KINDS, STRATEGIES } from './wire-words.js'

export function absent() {
  return h(
    'div',
    { class: 'empty' },
    icon('clock'),
    h('h2', null, 'Only the metadata of this turn is kept'),
    h(
      'p',
      null,
      'The contents of recent turns live in memory; those of this one have made room for newer ones, or went with a restart. To keep contents on disk, for the owner only, say so in the configuration:',
    ),
    h('div', { class: 'absent-code' }, codeBlock('[journal]\ncontents = "disk"', 'toml')),
  )
}

export function overview(turn) {
  const plan = turn.plan ?? {}
  const pair = (name, value) =>
    value === null || value === undefined || value === '' ? null : [h('dt', null, name), h('dd', null, value)]
  const other = (id) =>
    id ? h('a', { class: 'mono', href: `/ui/wire/${encodeURIComponent(id)}` }, id) : null
  const after = turn.parked_after
  return h(
    'div',
    { class: 'overview' },
    h(
      'section',
      { class: 'panel' },
      h('h2', null, 'How tools were served'),
      h(
        'p',
        { class: 'row' },
        strategyBadge(turn.strategy),
        plan.dialect ? h('span', { class: 'badge' }, plan.dialect) : null,
      ),
      h('p', null, STRATEGIES[turn.strategy] ?? ''),
      h(
        'dl',
        { class: 'pairs' },
        pair('Kind', `${turn.kind}: ${KINDS[turn.kind] ?? ''}`),
        pair('Continues', other(turn.resumed_from)),
        pair('Parked before', turn.parked_ms ? ms(turn.parked_ms) : null),
        pair('Backend', turn.backend),
        pair(
          'Parked after',
          !after
            ? null
            : after.to_ms === null
              ? 'nobody has brought the results so far'
              : ms(after.to_ms - after.from_ms),
        ),
        pair('Continued by', other(after?.turn)),
        pair('Required', plan.required ? 'the client wants a call' : null),
        pair('Begun with', plan.begun),
        pair('Mark of calls', plan.nonce),
      ),
    ),
    h(
      'section',
      { class: 'panel' },
      h('h2', null, 'Usage and end'),
      h(
        'dl',
        { class: 'pairs' },
        pair('Input tokens', turn.input_tokens?.toLocaleString()),
        pair('Output tokens', turn.output_tokens?.toLocaleString()),
        pair('Finish', finishOf(turn)),
        pair('Status', turn.status),
        pair('Error', failureWords(turn)),
        pair('Cancelled', turn.cancelled ? 'yes, by the client' : null),
        pair(
          'Calls',
          turn.calls?.length
            ? h(
                'ul',
                { class: 'plain' },
                turn.calls.map((name, at) =>
                  h(
                    'li',
                    null,
                    h('span', { class: 'mono strong' }, name),
                    ' ',
                    h('span', { class: 'mono muted' }, turn.call_ids?.[at] ?? ''),
                  ),
                ),
              )
            : 'none',
        ),
        pair('Request', h('span', { class: 'mono' }, turn.request_id)),
        pair('Turn', h('span', { class: 'mono' }, turn.id)),
        pair('Key', turn.key ? h('span', { class: 'mono' }, turn.key) : 'none needed'),
      ),
    ),
    h('section', { class: 'panel' }, h('h2', null, 'Dropped by policy'), dropped(turn.dropped)),
    h('section', { class: 'panel span' }, h('h2', null, 'Fields of the request'), report(turn)),
  )
}

function dropped(drops) {
  const rows = Object.entries(drops ?? {})
  if (!rows.length)
    return h(
      'p',
      { class: 'muted' },
      'Nothing. All that the model wrote is in the answer, in a call, or was markup.',
    )
  return h(
    'ul',
    { class: 'plain drops' },
    rows.map(([kind, count]) => {
      const [unit, words] = DROPS[kind] ?? ['', '']
      return h(
        'li',
        null,
        h('span', { class: 'drop-count' }, Number(count).toLocaleString()),
        h(
          'span',
          null,
          h(
            'span',
            { class: 'strong' },
            `${unit ? `${count === 1 ? unit.replace(/s$/, '') : unit}, ` : ''}${kind}`,
          ),
          h('span', { class: 'muted drop-words' }, words),
        ),
      )
    }),
  )
}

/** The report as rows, whichever way it is told. */
export function reportRows(turn) {
  const told = turn.plan?.report ?? turn.report ?? []
  if (Array.isArray(told))
    return told.map((row) => (Array.isArray(row) ? { field: row[0], how: row[1], note: row[2] ?? '' } : row))
  if (typeof told === 'object') return Object.entries(told).map(([field, how]) => ({ field, how, note: '' }))
  return String(told)
    .split(';')
    .map((part) => part.trim())
    .filter(Boolean)
    .map((part) => {
      const at = part.lastIndexOf('=')
      return { field: part.slice(0, at), how: part.slice(at + 1), note: '' }
    })
}

function report(turn) {
  const order = ['refused', 'ignored', 'emulated', 'constrained', 'honoured']
  const rows = reportRows(turn).toSorted((one, other) => order.indexOf(one.how) - order.indexOf(other.how))
  if (!rows.length) return h('p', { class: 'muted' }, 'Every field of the request was honoured.')
  const line = ({ field, how, note }) => {
    const [tone, picture, meaning] = DISPOSITIONS[how] ?? ['', 'info', '']
    return h(
      'tr',
      null,
      h('td', { class: 'mono' }, field),
      h('td', null, h('span', { class: `badge ${tone}` }, icon(picture, 12), how)),
      h('td', { class: 'muted' }, note || meaning),
    )
  }
  return h(
    'div',
    { class: 'scroll', tabindex: '0', role: 'region', 'aria-label': 'Fields of the request' },
    h(
      'table',
      { class: 'table' },
      h(
        'thead',
        null,
        h(
          'tr',
          null,
          h('th', { scope: 'col' }, 'Field'),
          h('th', { scope: 'col' }, 'What became of it'),
          h('th', { scope: 'col' }, 'How'),
        ),
      ),
      h('tbody', null, rows.map(line)),
    ),
  )
}

export function request(turn) {
  const part = (title, words, value) =>
    value == null
      ? null
      : h(
          'section',
          { class: 'panel' },
          h(
            'div',
            { class: 'row between nowrap sides-head' },
            h('div', null, h('h2', null, title), h('p', { class: 'muted small' }, words)),
            copyButton(() => jsonText(value)),
          ),
          jsonTree(value),
        )
  const parts = [
    part('Body', 'As the client sent it, decoded; secrets are masked.', turn.request),
    part('Turn', 'What it became: the one form that everything behind it reads.', turn.turn),
    part('Asked', 'What the backend was asked in its place, tools told in words.', turn.plan?.asked),
  ].filter(Boolean)
  return parts.length
    ? h('div', { class: 'requests' }, parts)
    : h(
        'div',
        { class: 'empty' },
        icon('file'),
        h('h2', null, 'No request'),
        h('p', null, 'The body could not be decoded, so there is nothing to show.'),
      )
}

export function replayed(told) {
  if (told.same)
    return banner(
      'The same again: run through today’s gateway, the recorded frames give the client exactly what it got then.',
      'ok',
      true,
    )
  const rows = told.differences ?? []
  const cell = (words, other, tone) =>
    h('td', { class: 'mono' }, marked(String(words ?? ''), String(other ?? ''), tone))
  const table = h(
    'div',
    { class: 'scroll', tabindex: '0', role: 'region', 'aria-label': 'Differences' },
    h(
      'table',
      { class: 'table replay' },
      h(
        'thead',
        null,
        h(
          'tr',
          null,
          ['Where', 'Then', 'Now'].map((name) => h('th', { scope: 'col' }, name)),
        ),
      ),
      h(
        'tbody',
        null,
        rows.map((row) =>
          h(
            'tr',
            null,
            h('td', null, row.where),
            cell(row.then, row.now, 'then'),
            cell(row.now, row.then, 'now'),
          ),
        ),
      ),
    ),
  )
  const wires =
    typeof told.wire_then === 'string' && typeof told.wire_now === 'string'
      ? h(
          'details',
          null,
          h('summary', null, 'The whole wire, then and now'),
          h(
            'div',
            { class: 'sides' },
            codeBlock(told.wire_then.slice(0, 60_000), 'then'),
            codeBlock(told.wire_now.slice(0, 60_000), 'now'),
          ),
        )
      : null
  const node = h(
    'section',
    { class: 'panel stack', 'aria-label': 'Replay' },
    h(
      'div',
      { class: 'row between' },
      h('h2', null, `Replayed: ${counted(rows.length, 'difference')}`),
      h(
        'button',
        {
          type: 'button',
          class: 'button quiet small square',
          'aria-label': 'Dismiss',
          onclick: () => node.remove(),
        },
        icon('close', 15),
      ),
    ),
    h(
      'p',
      { class: 'muted' },
      'The recorded frames went through today’s gateway. With them the client would now get something else.',
    ),
    table,
    wires,
  )
  return node
}

/** The text with that part marked in which it differs from the other. */
function marked(words, other, tone) {
  let from = 0
  while (from < words.length && from < other.length && words[from] === other[from]) from += 1
  let to = 0
  while (to < words.length - from && to < other.length - from && words.at(-1 - to) === other.at(-1 - to))
    to += 1
  const middle = words.slice(from, words.length - to)
  return [
    words.slice(0, from),
    middle ? h('mark', { class: `differs ${tone}` }, middle) : null,
    to ? words.slice(words.length - to) : '',
  ]
}
