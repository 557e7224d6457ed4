// The page of one turn: its head, its timeline, and the tabs below.

/** @import { ClosePage, Context, RowKind, Turn, TurnReply } from '../types' */

import * as api from './api.js'
import { patterns } from './charts.js'
import { banner, clear, codeBlock, copy, h, icon, ms, strategyBadge, tabList, text, when } from './dom.js'
import { Timeline } from './timeline.js'
import { contentsGone, overview, replayResult, request } from './wire-overview.js'
import { RowsView } from './wire-rows.js'
import { sidesView } from './wire-sides.js'
import { RowSource } from './wire-source.js'
import { apiName, callNames, endBadge, errorText, kindText, ROW_KINDS, ROWS } from './wire-words.js'

const POLL_MS = 1500
const COPIED_MS = 1600
const FIXTURE = 'The recorded turn as a file for “toolwire replay”'

/**
 * `view` exists only for a list of rows; `top` is the scroll position of that list.
 *
 * @typedef {{ element: HTMLElement, view?: RowsView, top: number }} TabView
 */

/** @param {HTMLElement} main @param {Context} context @param {string} id @returns {Promise<ClosePage>} */
export async function openTurn(main, context, id) {
  // If the person leaves while the turn is loaded, another page empties `main`, and the holder is not
  // connected.
  const loading = h('div', { class: 'loading' }, h('span', { class: 'spinner' }), 'Loading…')
  const holder = h('div', { class: 'turn-holder' }, loading)
  clear(main, holder)
  try {
    const reply = await api.get(turnPath(id))
    if (!holder.isConnected) return () => {}
    const page = new TurnPage(context, id, shaped(reply))
    clear(holder, page.node)
    page.openTab(location.hash.slice(1))
    return () => page.close()
  } catch (error) {
    if (api.statusOf(error) !== 401) clear(holder, notFound(error))
    return () => {}
  }
}

/** @param {string} id */
const turnPath = (id) => /** @type {const} */ (`/turns/${encodeURIComponent(id)}`)

/** @param {unknown} error */
function notFound(error) {
  const missing = api.statusOf(error) === 404
  return h(
    'div',
    { class: 'page wide' },
    back(),
    h(
      'div',
      { class: 'empty' },
      icon('wire'),
      h('h1', null, missing ? 'This turn is not in the journal' : 'The turn could not be loaded'),
      h('p', null, api.messageOf(error)),
      h('a', { class: 'button', href: '/ui/wire' }, 'All turns'),
    ),
  )
}

const back = () =>
  h(
    'nav',
    { class: 'turn-back', 'aria-label': 'Back' },
    h('a', { href: '/ui/wire' }, icon('left', 15), ' All turns'),
  )

/** @param {TurnReply} reply @returns {Turn} */
function shaped(reply) {
  const after = reply.parked.find((one) => one.to_ms !== 0) ?? null // one that ends at 0 was before this turn
  return { ...reply, parked: false, parked_after: after, waits: after !== null && after.to_ms === null }
}

class TurnPage {
  /** @type {Map<string, TabView>} */
  views = new Map()
  tab = ''
  timer = 0
  closed = false

  /** @param {Context} context @param {string} id @param {Turn} turn */
  constructor(context, id, turn) {
    this.context = context
    this.id = id
    this.turn = turn
    /** @param {RowKind} kind */
    const source = (kind) =>
      new RowSource(
        (from, count) => api.get(api.query(`${turnPath(id)}/frames`, { kind, from, count })),
        turn.counts[kind] ?? 0,
      )
    this.sources = { frames: source('frames'), events: source('events'), wire: source('wire') }
    this.counts = {
      frames: h('span', { class: 'tab-count' }),
      events: h('span', { class: 'tab-count' }),
      wire: h('span', { class: 'tab-count' }),
    }
    this.summary = h('div', { class: 'turn-summary' })
    this.news = h('div', { class: 'stack turn-news', 'aria-live': 'polite' })
    this.panel = h('div', { class: 'turn-panel', role: 'tabpanel', id: 'turn-panel', tabindex: '-1' })
    this.timeline = new Timeline(turn, this.sources, (kind, index) => {
      this.openTab(kind)
      this.views.get(kind)?.view?.pick(index)
    })
    const items = [
      { id: 'overview', label: 'Overview' },
      { id: 'request', label: 'Request' },
      ...ROW_KINDS.map((kind) => ({ id: kind, label: [ROWS[kind].title, ' ', this.counts[kind]] })),
      { id: 'sides', label: 'Side by side' },
    ]
    this.tabNames = items.map((item) => item.id)
    this.tabs = tabList(
      items.map((item) => ({ ...item, domId: `turn-tab-${item.id}` })),
      'overview',
      (name) => this.openTab(name),
      'The turn',
    )
    for (const tab of this.tabs.children) tab.setAttribute('aria-controls', 'turn-panel')
    this.node = h(
      'div',
      { class: 'page wide turn' },
      patterns(),
      back(),
      this.summary,
      this.news,
      this.timeline.element,
      h('div', null, this.tabs),
      this.panel,
    )
    this.drawHead()
    this.showCounts()
    const { live } = context
    this.offs = [
      live.on('turn', (event) => event.turn?.id === id && this.refresh()),
      live.on('lost', () => this.refresh()),
    ]
    this.pollWhileRunning()
  }

  get gone() {
    return this.turn.contents === 'gone'
  }

  showCounts() {
    for (const kind of ROW_KINDS) text(this.counts[kind], this.sources[kind].total.toLocaleString())
  }

  // --- head ------------------------------------------------------------------------------------------------

  drawHead() {
    const { turn } = this
    const format = turn.stream ? 'streamed' : 'not streamed'
    const origin = [apiName(turn.api), format, turn.backend ? `backend ${turn.backend}` : '']
      .filter(Boolean)
      .join(', ')
    const kind =
      turn.kind === 'new' ? null : h('span', { class: 'badge', title: kindText(turn.kind) }, turn.kind)
    const goneTitle =
      'The contents of this turn were deleted, so the turn cannot be copied, downloaded or replayed'
    const title = h('h1', { class: 'turn-title', tabindex: '-1' }, turn.model || 'A turn of an unknown model')
    const badges = h(
      'div',
      { class: 'row' },
      endBadge(turn),
      strategyBadge(turn.strategy),
      kind,
      this.gone ? h('span', { class: 'badge', title: goneTitle }, 'metadata only') : null,
      h('span', { class: 'muted small' }, `${origin} · `, when(turn.at)),
    )
    const cut = 'This turn was too large to be recorded completely, so it cannot be replayed.'
    clear(
      this.summary,
      h('div', { class: 'page-head' }, h('div', { class: 'stack' }, title, badges), this.buttons()),
      turn.error ? banner(errorText(turn), 'bad') : null,
      turn.cut ? banner(cut, 'warn') : null,
      this.facts(),
    )
  }

  facts() {
    const { turn } = this
    /** @param {string} name @param {string | null} value @param {string} [about] */
    const fact = (name, value, about) =>
      value ? h('div', { class: 'turn-fact', title: about }, h('dt', null, name), h('dd', null, value)) : null
    const first =
      turn.first_byte_ms === null ? (turn.state === 'running' ? 'waiting' : 'none') : ms(turn.first_byte_ms)
    const tokens = `${turn.input_tokens.toLocaleString()} in · ${turn.output_tokens.toLocaleString()} out`
    const after = turn.parked_after
    const time = new Date(turn.at * 1000).toLocaleString(undefined, {
      dateStyle: 'medium',
      timeStyle: 'medium',
    })
    return h(
      'dl',
      { class: 'turn-facts' },
      fact('First byte', first, 'Time until the first byte of the response'),
      fact('Duration', turn.duration_ms === null ? 'running' : ms(turn.duration_ms)),
      fact('Tokens', tokens),
      fact('Calls', callNames(turn.calls) || 'none'),
      fact(
        'Wait before this turn',
        turn.parked_ms ? ms(turn.parked_ms) : null,
        'How long the run waited for the results that this request brought',
      ),
      fact(
        'Wait after this turn',
        after?.to_ms ? ms(after.to_ms - after.from_ms) : null,
        'How long the run waited until another request brought the results',
      ),
      fact('Time', time),
    )
  }

  buttons() {
    const { gone } = this
    const curlLabel = h('span', null, 'Copy as curl')
    const curl = h(
      'button',
      { type: 'button', class: 'button', disabled: gone },
      icon('terminal', 16),
      curlLabel,
    )
    curl.addEventListener('click', () => this.copyCurl(curlLabel))
    const download = [icon('download', 16), 'Download fixture']
    const href = api.url(`${turnPath(this.id)}/fixture`)
    const fixture = gone
      ? h('button', { type: 'button', class: 'button', disabled: true }, download)
      : h('a', { class: 'button', href, download: `${this.id}.jsonl`, title: FIXTURE }, download)
    const running = this.turn.state === 'running'
    const replayLabel = h('span', null, 'Replay the recording')
    const replay = h(
      'button',
      { type: 'button', class: 'button', disabled: gone || running },
      icon('retry', 16),
      replayLabel,
    )
    replay.addEventListener('click', () => this.replay(replay, replayLabel))
    return h('div', { class: 'row turn-buttons' }, curl, fixture, replay)
  }

  /** @param {HTMLElement} label */
  async copyCurl(label) {
    try {
      const { curl } = await api.get(`${turnPath(this.id)}/curl`)
      const ok = await copy(curl)
      this.context.announce(ok ? 'Copied as curl' : 'Could not copy')
      if (ok) {
        text(label, 'Copied')
        setTimeout(() => text(label, 'Copy as curl'), COPIED_MS)
        return
      }
      const about = h('p', null, 'The browser does not allow the page to copy. This is the command:')
      clear(this.news, h('div', { class: 'stack' }, about, codeBlock(curl, 'sh')))
    } catch (error) {
      clear(this.news, banner(api.messageOf(error), 'bad', true))
    }
  }

  /** @param {HTMLButtonElement} button @param {HTMLElement} label */
  async replay(button, label) {
    button.disabled = true
    text(label, 'Replaying …')
    try {
      clear(this.news, replayResult(await api.post(`${turnPath(this.id)}/replay`)))
    } catch (error) {
      clear(this.news, banner(`The recording could not be replayed. ${api.messageOf(error)}`, 'bad', true))
    } finally {
      button.disabled = false
      text(label, 'Replay the recording')
    }
  }

  // --- tabs ------------------------------------------------------------------------------------------------

  /** @param {string} wanted */
  openTab(wanted) {
    const name = this.tabNames.includes(wanted) ? wanted : 'overview'
    if (this.tab === name) return
    this.tab = name
    this.tabs.pick(name)
    this.panel.setAttribute('aria-labelledby', `turn-tab-${name}`)
    history.replaceState(history.state, '', name === 'overview' ? location.pathname : `#${name}`)
    this.showTab()
  }

  showTab() {
    const view = this.views.get(this.tab) ?? this.build(this.tab)
    this.views.set(this.tab, view)
    clear(this.panel, view.element)
    // A list that leaves the page loses its scroll position.
    if (view.view && view.top) view.view.list.element.scrollTop = view.top
  }

  /** @param {string} name @returns {TabView} */
  build(name) {
    const { turn } = this
    if (name === 'overview') return { element: overview(turn), top: 0 }
    if (this.gone) return { element: contentsGone(), top: 0 }
    if (name === 'request') return { element: request(turn), top: 0 }
    if (name === 'sides') return { element: sidesView(turn), top: 0 }
    return this.buildRows(/** @type {RowKind} */ (name))
  }

  /** @param {RowKind} kind @returns {TabView} */
  buildRows(kind) {
    const source = this.sources[kind]
    const { none, what } = ROWS[kind]
    if (!source.total && this.turn.state !== 'running') {
      const heading = h('h2', null, none)
      const about = h('p', null, `This tab shows ${what}. There is nothing to show for this turn.`)
      return { element: h('div', { class: 'empty' }, icon('list'), heading, about), top: 0 }
    }
    const view = new RowsView(kind, source, ([at]) => this.timeline.mark(at))
    /** @type {TabView} */
    const entry = { element: view.element, view, top: 0 }
    const list = view.list.element
    const scrolled = () => {
      if (list.isConnected) entry.top = list.scrollTop
    }
    list.addEventListener('scroll', scrolled, { passive: true })
    return entry
  }

  // --- while it runs ---------------------------------------------------------------------------------------

  pollWhileRunning() {
    if (this.turn.state === 'running' && !this.closed) this.timer = setTimeout(() => this.refresh(), POLL_MS)
  }

  async refresh() {
    clearTimeout(this.timer)
    if (this.closed) return
    try {
      const turn = shaped(await api.get(turnPath(this.id)))
      if (this.closed) return
      this.update(turn)
    } catch {
      // The next poll or the live stream tries again.
    }
    clearTimeout(this.timer)
    this.pollWhileRunning()
  }

  /** @param {Turn} turn */
  update(turn) {
    const ended = this.turn.state !== turn.state
    this.turn = turn
    for (const kind of ROW_KINDS) this.sources[kind].grow(turn.counts[kind] ?? 0)
    this.showCounts()
    this.timeline.update(turn)
    if (ended || !this.summary.contains(document.activeElement)) this.drawHead()
    for (const name of ['overview', 'request', 'sides'])
      if (ended || name !== this.tab) this.views.delete(name)
    if (!ended) return
    for (const kind of ROW_KINDS) if (!this.views.get(kind)?.view) this.views.delete(kind)
    this.showTab()
    this.context.announce('The turn has ended')
  }

  close() {
    this.closed = true
    clearTimeout(this.timer)
    for (const off of this.offs) off()
    for (const { view } of this.views.values()) view?.close()
    this.timeline.close()
  }
}
