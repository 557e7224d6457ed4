// One turn: its head, its timeline, and the tabs below.

import { banner, clear, codeBlock, copy, h, icon, ms, strategyBadge, tabList, text, when } from './dom.js'
import { query, url } from './api.js'
import { moment, patterns } from './charts.js'
import { timeline } from './timeline.js'
import { absent, overview, replayed, request } from './wire-overview.js'
import { rowsView } from './wire-rows.js'
import { sidesView } from './wire-sides.js'
import { RowSource } from './wire-source.js'
import { callNames, endBadge, failureWords, KINDS, ROWS } from './wire-words.js'

const POLL_MS = 1500
const ROW_TABS = Object.keys(ROWS)

export async function openTurn(main, context, id) {
  const { api, live } = context
  const path = `/turns/${encodeURIComponent(id)}`
  const holder = h(
    'div',
    { class: 'turn-holder' },
    h('div', { class: 'loading' }, h('span', { class: 'spinner' }), 'Loading…'),
  )
  clear(main, holder) // whoever navigates on meanwhile empties main; what comes late then goes nowhere
  let turn
  try {
    turn = shaped(await api.get(path))
  } catch (error) {
    if (error.status === 401) return () => {}
    clear(
      holder,
      h(
        'div',
        { class: 'page wide' },
        back(),
        h(
          'div',
          { class: 'empty' },
          icon('wire'),
          h(
            'h1',
            null,
            error.status === 404 ? 'This turn is not in the journal' : 'The turn could not be loaded',
          ),
          h('p', null, error.message),
          h('a', { class: 'button', href: '/ui/wire' }, 'All turns'),
        ),
      ),
    )
    return () => {}
  }
  const sources = Object.fromEntries(
    ROW_TABS.map((kind) => [
      kind,
      new RowSource(
        (from, count) => api.get(query(`${path}/frames`, { kind, from: String(from), count })),
        turn.counts[kind] ?? 0,
      ),
    ]),
  )
  const views = new Map()
  const summary = h('div', { class: 'turn-summary' })
  const news = h('div', { class: 'stack turn-news', 'aria-live': 'polite' })
  const panel = h('div', { class: 'turn-panel', role: 'tabpanel', id: 'turn-panel', tabindex: '-1' })
  const gone = () => turn.contents === 'gone'
  const drawing = timeline(turn, sources, (kind, index) => {
    pick(kind)
    views.get(kind).view.pick(index)
  })
  let tabs = null
  let chosen = ''

  const page = h('div', { class: 'page wide turn' }, patterns(), back(), summary, news, drawing.element)
  const tabPlace = h('div')
  page.append(tabPlace, panel)
  head()
  tabbed()
  clear(holder, page)
  pick(
    ROW_TABS.includes(location.hash.slice(1)) || ['request', 'sides'].includes(location.hash.slice(1))
      ? location.hash.slice(1)
      : 'overview',
  )

  // --- head ------------------------------------------------------------------------------------------------------------------------------------

  function head() {
    const fact = (name, value, title) =>
      value === null || value === ''
        ? null
        : h('div', { class: 'turn-fact', title }, h('dt', null, name), h('dd', null, value))
    const tokens =
      turn.input_tokens == null && turn.output_tokens == null
        ? null
        : `${(turn.input_tokens ?? 0).toLocaleString()} in · ${(turn.output_tokens ?? 0).toLocaleString()} out`
    clear(
      summary,
      h(
        'div',
        { class: 'page-head' },
        h(
          'div',
          { class: 'stack' },
          h('h1', { class: 'turn-title', tabindex: '-1' }, turn.model || 'A turn without a model'),
          h(
            'div',
            { class: 'row' },
            endBadge(turn),
            strategyBadge(turn.strategy),
            turn.kind === 'new' ? null : h('span', { class: 'badge', title: KINDS[turn.kind] }, turn.kind),
            gone()
              ? h(
                  'span',
                  { class: 'badge', title: 'Its contents are gone: nothing to copy, download or replay' },
                  'metadata only',
                )
              : null,
            h(
              'span',
              { class: 'muted small' },
              apiName(turn.api),
              turn.stream ? ', streamed' : ', in one piece',
              turn.backend ? `, by ${turn.backend}` : '',
              ' · ',
              when(turn.at),
            ),
          ),
        ),
        buttons(),
      ),
      turn.error ? banner(failureWords(turn), 'bad') : null,
      turn.cut
        ? banner(
            'This turn was too large to be kept whole: its rows end early, and it can not be replayed.',
            'warn',
          )
        : null,
      h(
        'dl',
        { class: 'turn-facts' },
        fact(
          'First token',
          turn.first_byte_ms == null
            ? turn.state === 'running'
              ? 'waiting'
              : 'none'
            : ms(turn.first_byte_ms),
        ),
        fact('Duration', turn.duration_ms == null ? 'running' : ms(turn.duration_ms)),
        fact('Tokens', tokens),
        fact('Calls', turn.calls?.length ? callNames(turn.calls) : 'none'),
        fact(
          'Parked before',
          turn.parked_ms ? ms(turn.parked_ms) : null,
          'How long the run waited for the results that this request brought',
        ),
        fact(
          'Parked after',
          turn.parked_after?.to_ms ? ms(turn.parked_after.to_ms - turn.parked_after.from_ms) : null,
          'How long the run waited until another request brought the results',
        ),
        fact('Time', moment(turn.at).toLocaleString(undefined, { dateStyle: 'medium', timeStyle: 'medium' })),
      ),
    )
  }

  function buttons() {
    const curl = h(
      'button',
      { type: 'button', class: 'button', disabled: gone(), onclick: () => asCurl(curl) },
      icon('terminal', 16),
      h('span', null, 'Copy as curl'),
    )
    const fixture = gone()
      ? h(
          'button',
          { type: 'button', class: 'button', disabled: true },
          icon('download', 16),
          'Download fixture',
        )
      : h(
          'a',
          { class: 'button', href: url(`${path}/fixture`), download: `${id}.jsonl` },
          icon('download', 16),
          'Download fixture',
        )
    const again = h(
      'button',
      {
        type: 'button',
        class: 'button',
        disabled: gone() || turn.state === 'running',
        onclick: () => replay(again),
      },
      icon('retry', 16),
      h('span', null, 'Replay'),
    )
    return h('div', { class: 'row turn-buttons' }, curl, fixture, again)
  }

  async function asCurl(button) {
    try {
      const { curl } = await api.get(`${path}/curl`)
      const ok = await copy(curl)
      context.announce(ok ? 'Copied as curl' : 'Could not copy')
      if (ok) {
        text(button.lastChild, 'Copied')
        setTimeout(() => text(button.lastChild, 'Copy as curl'), 1600)
      } else {
        clear(
          news,
          h(
            'div',
            { class: 'stack' },
            h('p', null, 'The browser did not let the page copy. Here it is:'),
            codeBlock(curl, 'sh'),
          ),
        )
      }
    } catch (error) {
      clear(news, banner(error.message, 'bad', true))
    }
  }

  async function replay(button) {
    button.disabled = true
    text(button.lastChild, 'Replaying …')
    try {
      clear(news, replayed(await api.post(`${path}/replay`)))
    } catch (error) {
      clear(news, banner(`It could not be replayed. ${error.message}`, 'bad', true))
    } finally {
      button.disabled = false
      text(button.lastChild, 'Replay')
    }
  }

  // --- tabs ------------------------------------------------------------------------------------------------------------------------------------

  function tabbed() {
    const counted = (kind) => [
      ROWS[kind].title,
      ' ',
      h('span', { class: 'tab-count' }, sources[kind].total.toLocaleString()),
    ]
    const items = [
      { id: 'overview', label: 'Overview' },
      { id: 'request', label: 'Request' },
      ...ROW_TABS.map((kind) => ({ id: kind, label: counted(kind) })),
      { id: 'sides', label: 'Side by side' },
    ]
    tabs = tabList(
      items.map((item) => ({ ...item, domId: `turn-tab-${item.id}` })),
      chosen || 'overview',
      pick,
      'The turn',
    )
    for (const tab of tabs.children) tab.setAttribute('aria-controls', 'turn-panel')
    clear(tabPlace, tabs)
  }

  function pick(name) {
    if (chosen === name) return
    chosen = name
    tabs.pick(name)
    panel.setAttribute('aria-labelledby', `turn-tab-${name}`)
    history.replaceState(history.state, '', name === 'overview' ? location.pathname : `#${name}`)
    show()
  }

  function show() {
    if (!views.has(chosen)) views.set(chosen, build(chosen))
    const { element, top, view } = views.get(chosen)
    clear(panel, element)
    // a list that leaves the page forgets where it stood
    if (view && top) element.querySelector('.vlist').scrollTop = top
  }

  function build(name) {
    if (ROW_TABS.includes(name)) return rowTab(name)
    if (name === 'overview') return { element: overview(turn) }
    if (gone()) return { element: absent() }
    if (name === 'request') return { element: request(turn) }
    return { element: sidesView(turn) }
  }

  function rowTab(kind) {
    if (gone()) return { element: absent() }
    if (!sources[kind].total && turn.state !== 'running')
      return {
        element: h(
          'div',
          { class: 'empty' },
          icon('list'),
          h('h2', null, `No ${ROWS[kind].title.toLowerCase()}`),
          h('p', null, `Here would stand ${ROWS[kind].what}. In this turn there was nothing.`),
        ),
      }
    const view = rowsView(kind, sources[kind], (_index, row) => drawing.mark(row[0]))
    const entry = { element: view.element, view, top: 0 }
    view.element.querySelector('.vlist').addEventListener(
      'scroll',
      (event) => {
        entry.top = event.target.scrollTop
      },
      { passive: true },
    )
    return entry
  }

  // --- while it runs ---------------------------------------------------------------------------------------------------------------------------

  let timer = 0
  let closed = false
  async function refresh() {
    clearTimeout(timer)
    if (closed) return
    try {
      const before = turn
      turn = shaped(await api.get(path))
      if (closed) return
      for (const kind of ROW_TABS) sources[kind].grow(turn.counts[kind] ?? 0)
      for (const kind of ROW_TABS)
        text(tabs.querySelector(`#turn-tab-${kind} .tab-count`), sources[kind].total.toLocaleString())
      drawing.update(turn)
      if (!summary.contains(document.activeElement) || before.state !== turn.state) head()
      for (const name of ['overview', 'request', 'sides'])
        if (name !== chosen || before.state !== turn.state) views.delete(name)
      if (before.state !== turn.state) {
        for (const kind of ROW_TABS) if (!views.get(kind)?.view) views.delete(kind)
        show()
        context.announce('The turn has ended')
      }
    } catch {
      // the next try, or the live stream, will tell
    }
    if (turn.state === 'running' && !closed) timer = setTimeout(refresh, POLL_MS)
  }
  const offs = [live.on('turn', (event) => event.turn?.id === id && refresh()), live.on('lost', refresh)]
  if (turn.state === 'running') timer = setTimeout(refresh, POLL_MS)

  return () => {
    closed = true
    clearTimeout(timer)
    for (const off of offs) off()
    for (const { view } of views.values()) view?.close()
    drawing.close()
  }
}

/** The turn, with everything in place that may be missing. */
function shaped(told) {
  const after = (told.parked ?? []).find((one) => one.to_ms !== 0) ?? null // the one that ends at 0 was before this turn
  return {
    ...told,
    parked: false,
    parked_after: after,
    waits: after !== null && after.to_ms === null,
    counts: told.counts ?? {},
  }
}

const apiName = (name) => ({ chat: 'Chat completions', responses: 'Responses' })[name] ?? name
const back = () =>
  h(
    'nav',
    { class: 'turn-back', 'aria-label': 'Back' },
    h('a', { href: '/ui/wire' }, icon('left', 15), ' All turns'),
  )
