// The offer on the empty chat page to download a model that runs inside Toolwire, and its progress.
//
// The server continues the download while no tab is open. Progress changes only the numbers; the rest is
// drawn again only if the state changes, so that the focus stays on the button.

/** @import { Context, LocalState } from '../types' */

import * as api from './api.js'
import { banner, bytes, clear, codeBlock, h, icon, text } from './dom.js'

export class LocalOffer {
  /** @type {LocalState | null} */
  state = null
  /** The state that is drawn. Progress does not change this value. */
  drawn = ''
  begun = false // this tab began the download or saw it run

  /**
   * `onready` is called when the model can be used.
   *
   * @param {Context} context
   * @param {() => unknown} onready
   */
  constructor(context, onready) {
    this.context = context
    this.onready = onready
    this.bar = h('progress', { class: 'offer-bar', max: '1', value: '0' })
    this.amount = h('p', { class: 'muted small' })
    this.node = h('section', { class: 'offer', 'aria-label': 'A better model', hidden: true })
    const { live } = context
    this.offs = [live.on('local', (state) => this.show(state)), live.on('lost', () => this.load())]
    this.load()
  }

  end() {
    for (const off of this.offs) off()
  }

  async load() {
    try {
      this.show(await api.get('/local'))
    } catch {
      // The page works without the offer, and its other requests report what is wrong.
    }
  }

  /** @param {LocalState} state */
  show(state) {
    this.state = state
    const { download, model } = state
    if (download?.state === 'running') this.begun = true
    const kind = this.kind(state)
    this.node.hidden = kind === ''
    if (kind === 'running' && download) this.showProgress(download)
    if (kind === this.drawn) return
    this.drawn = kind
    const focused = this.node.contains(document.activeElement)
    clear(this.node, this.draw(kind, state))
    if (focused) this.node.querySelector('button')?.focus()
    if (kind === 'done') {
      this.begun = false
      this.context.announce(`${model.title} is ready.`)
      this.onready()
    } else if (kind === 'running') this.context.announce(`${model.title} is being downloaded.`)
  }

  /** @param {LocalState} state @returns {string} */
  kind({ download, offered, lacks, locked }) {
    if (download?.state === 'done') return this.begun || this.drawn === 'done' ? 'done' : ''
    if (download?.state === 'running') return 'running'
    if (!offered) return ''
    if (locked) return 'locked'
    if (lacks) return 'lacks'
    return download ? `${download.state} ${download.error}` : 'offered'
  }

  /** @param {string} kind @param {LocalState} state */
  draw(kind, { model, lacks, locked, download }) {
    const memory = `It needs ${bytes(model.memory)} of memory. Its licence is ${model.licence}.`
    const needs = `${memory} The download is ${bytes(model.size)}.`
    const head = h('h3', null, 'Get a model worth talking to')
    const about = h(
      'p',
      { class: 'muted small' },
      `${model.title} is ${model.use}. It runs on this machine, without an account. ${needs}`,
    )
    if (kind === 'running')
      return [h('h3', null, `Downloading ${model.title}`), this.bar, this.amount, this.cancel()]
    if (kind === 'done') return banner(`${model.title} is ready. New chats use it.`, 'ok')
    if (kind === 'locked') return [head, about, banner(locked, '')]
    if (kind === 'lacks')
      return [
        head,
        about,
        h(
          'p',
          { class: 'small' },
          'This model needs llama.cpp. Install llama.cpp with this command, then start Toolwire again:',
        ),
        codeBlock(lacks),
      ]
    const again = download !== null
    const problem =
      download?.state === 'failed'
        ? banner(download.error, 'bad')
        : download
          ? h('p', { class: 'small' }, 'The download was stopped. The part already downloaded is kept.')
          : null
    return [
      head,
      about,
      problem,
      this.beginButton(again ? 'Continue the download' : `Download (${bytes(model.size)})`),
    ]
  }

  /** @param {string} label */
  beginButton(label) {
    const props = { type: 'button', class: 'button primary', onclick: () => this.begin() }
    return h('button', props, icon('download', 15), label)
  }

  cancel() {
    const props = { type: 'button', class: 'button small', onclick: () => this.stop() }
    return h('button', props, 'Stop the download')
  }

  /** @param {NonNullable<LocalState['download']>} download */
  showProgress({ done, total, phase }) {
    const share = total ? done / total : 0
    this.bar.setAttribute('value', String(share))
    this.bar.setAttribute('aria-label', phase === 'check' ? 'Checking' : 'Downloading')
    const verb = phase === 'check' ? 'Checking the part already downloaded: ' : ''
    text(this.amount, `${verb}${bytes(done)} of ${bytes(total)}`)
  }

  async begin() {
    await this.attempt(async () => this.show(await api.post('/local/download')))
  }

  async stop() {
    await this.attempt(() => api.del('/local/download'))
  }

  /** @param {() => Promise<unknown>} action */
  async attempt(action) {
    try {
      await action()
    } catch (error) {
      this.node.append(banner(api.messageOf(error), 'bad', true))
    }
  }
}
