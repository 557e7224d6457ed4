// The chat page: conversations between a person and a model that may use tools.
//
// The page loads a conversation from the server and then applies the live changes in their order. If a change
// is missing, the page loads the conversation again. The approval dialog opens at once for calls of the open
// conversation.

/** @import { ClosePage, Context, Conversation, Model, Operation } from '../types' */

import * as api from './api.js'
import { Approvals } from './chat-approvals.js'
import { frame } from './chat-frame.js'
import { ChatHead } from './chat-head.js'
import { Composer } from './composer.js'
import { ConversationList } from './conversations.js'
import { banner, clear, h, text } from './dom.js'
import { LocalOffer } from './local-offer.js'
import { ModelPicker, preferred, remember } from './model-picker.js'
import { Scroller } from './scroller.js'
import { Thread } from './thread.js'
import { hint, missingConversation, welcome } from './welcome.js'

export const title = 'Chat'

/**
 * @typedef {{ id?: string, title: string, model: string, running: boolean, seq: number,
 *   tour: boolean }} State
 */

const EMPTY = { title: '', model: '', running: false, seq: 0, entries: [], tour: false }
/** The address that starts a tour. */
const TOUR = /^\/ui\/tour\/?$/

/** @param {HTMLElement} main @param {Context} context @returns {Promise<ClosePage>} */
export async function open(main, context) {
  const chat = new Chat(main, context)
  await chat.go(context.id)
  /** @param {string | undefined} id */
  const go = (id) => chat.go(id)
  return Object.assign(() => chat.end(), { go })
}

export class Chat {
  /** @type {string | undefined} the open conversation; undefined for a new chat */
  id = undefined
  /** @type {State | null} what is shown; null while it is loaded */
  state = null
  missing = false
  /** @type {Operation[]} live changes that came while the conversation was loaded */
  buffered = []
  /** @type {string | undefined} the conversation that is being loaded */
  loading = undefined
  reload = false
  startingTour = false
  approvals = new Approvals(this)
  ended = false
  /** @type {Model[]} */
  models = []
  left = new AbortController() // aborted when the person leaves the conversation
  /** @type {Promise<void> | undefined} */
  loaded = undefined

  /** @param {HTMLElement} main @param {Context} context */
  constructor(main, context) {
    this.context = context
    this.thread = new Thread({ retry: () => this.retry(), review: () => this.approvals.review() })
    this.empty = h('div', { class: 'chat-empty' })
    this.scroller = new Scroller(h('div', { class: 'chat-column' }, this.empty, this.thread.node))
    this.trouble = h('div', { class: 'chat-trouble stack' })
    this.hint = h('p', { class: 'composer-hint muted' })
    this.picker = new ModelPicker((model) => this.changeModel(model))
    this.tourLabel = h('span', { class: 'badge tour-label' }, 'scripted, for this tour')
    this.composer = new Composer({
      send: (message) => this.send(message),
      stop: () => this.stop(),
      left: [this.picker.node, this.tourLabel],
    })
    this.list = new ConversationList(context, {
      showError: (error) => this.showError(error),
      deleted: (id) => id === this.id && context.navigate('/'),
      opened: () => this.showList(false),
    })
    this.head = new ChatHead(this.list, () => this.showList(!this.page.classList.contains('side-open')))
    const foot = [this.trouble, this.composer.node, this.hint]
    this.page = frame(this, foot, () => this.showList(false))
    main.append(this.page)
    const { live } = context
    this.offs = [
      live.on('chat', (op) => this.receive(op)),
      live.on('approvals', () => this.approvals.check()),
      live.on('lost', () => this.loadAll()),
      live.on('settings', () => this.loadSettings()),
    ]
    this.offer = new LocalOffer(context, () => this.loadModels(true))
    this.modelsLoaded = this.loadModels()
    this.list.load()
  }

  /** Opens or closes the list of conversations on a narrow screen. @param {boolean} on */
  showList(on) {
    this.page.classList.toggle('side-open', on)
    this.head.toggle.setAttribute('aria-expanded', String(on))
    if (on) this.list.search.focus()
    else if (this.list.node.contains(document.activeElement)) this.head.toggle.focus()
  }

  end() {
    this.ended = true
    this.left.abort()
    for (const off of this.offs) off()
    this.list.end()
    this.offer.end()
    this.picker.end()
    this.scroller.end()
  }

  /** Whether the page still shows this conversation. @param {string | undefined} id */
  isOpen(id) {
    return id === this.id && !this.ended
  }

  // --- what is shown ---------------------------------------------------------------------------------------

  /** @param {string | undefined} id */
  async go(id) {
    if (id === this.id && id !== undefined) return
    this.id = id
    if (this.list.node.contains(document.activeElement)) this.head.heading.focus()
    this.left.abort() // closes an approval dialog of the conversation before
    this.left = new AbortController()
    this.state = null
    this.buffered = []
    clear(this.trouble)
    this.thread.cut(0)
    this.list.go(id)
    this.composer.open(id)
    if (id === undefined) {
      this.showNew()
      if (TOUR.test(location.pathname)) await this.startTour()
    } else {
      this.loaded = this.load()
      await this.loaded
    }
    if (this.id === undefined) this.scroller.toStart()
    else this.scroller.toEnd()
  }

  showNew() {
    this.show({ ...EMPTY, model: preferred(this.models) })
    if (matchMedia('(pointer: fine)').matches && this.page.isConnected) this.composer.area.focus()
  }

  /** Starts a tour, and opens its conversation at its own address. */
  async startTour() {
    if (this.startingTour) return
    this.startingTour = true
    try {
      const { id } = await api.post('/tours')
      if (!TOUR.test(location.pathname)) return
      history.replaceState(null, '', `/ui/chat/${encodeURIComponent(id)}`)
      await this.go(id)
    } catch (error) {
      this.showError(error)
    } finally {
      this.startingTour = false
    }
  }

  async loadAll() {
    this.loadModels()
    if (this.id) await this.load()
  }

  async load() {
    const { id } = this
    if (id === undefined) return
    if (this.loading === id) {
      this.reload = true
      return
    }
    this.loading = id
    try {
      const conversation = await api.get(`/conversations/${encodeURIComponent(id)}`)
      if (!this.isOpen(id)) return
      this.show(conversation)
      this.loading = undefined
      for (const op of this.buffered.splice(0)) this.receive(op)
      this.approvals.check()
    } catch (error) {
      if (!this.isOpen(id)) return
      if (api.statusOf(error) === 404) this.showMissing()
      else this.showError(error)
    } finally {
      if (this.loading === id) this.loading = undefined
      if (this.reload) {
        this.reload = false
        this.load()
      }
    }
  }

  showMissing() {
    this.show({ ...EMPTY, title: 'Not found' }, true)
    clear(this.empty, missingConversation())
  }

  /** @param {Omit<Conversation, 'id'> & { id?: string }} conversation @param {boolean} [missing] */
  show({ id, title, model, running, seq, entries, tour }, missing = false) {
    this.state = { id, title, model, running, seq, tour }
    this.missing = missing
    this.thread.set(entries, running)
    this.picker.set(this.models, model)
    this.update()
  }

  update() {
    const { state } = this
    if (state === null) return
    this.head.show(state)
    this.picker.node.hidden = state.tour
    this.tourLabel.hidden = !state.tour
    this.context.setTitle(state.title && state.title !== 'New chat' ? state.title : title)
    this.composer.run(state.running)
    this.thread.run(state.running)
    const nothing = this.thread.views.length === 0
    this.empty.hidden = !nothing
    if (nothing && !this.missing)
      clear(
        this.empty,
        welcome(this.context.session, this.picker.model, (idea) => this.composer.set(idea), this.offer.node),
      )
    text(this.hint, hint(this.context.session, this.picker.model, state.tour))
  }

  /**
   * Loads the models. `again`: whether a new chat gets the preferred model again.
   *
   * @param {boolean} [again]
   */
  async loadModels(again = false) {
    try {
      this.models = (await api.get('/models')).models
      const { state } = this
      if (!state) return
      if (!state.id && (again || !this.models.some((one) => one.id === state.model)))
        state.model = preferred(this.models)
      this.picker.set(this.models, state.model)
      this.update()
    } catch (error) {
      this.showError(error)
    }
  }

  async loadSettings() {
    try {
      Object.assign(this.context.session, await api.session())
    } catch (error) {
      this.showError(error)
    }
    await this.loadModels()
  }

  /** @param {unknown} error */
  showError(error) {
    const status = api.statusOf(error)
    if (status === 401 || status === 0 || api.isAbort(error)) return // the shell shows these
    this.showMessage(api.messageOf(error), 'bad')
  }

  /** @param {string} message @param {'' | 'bad'} kind */
  showMessage(message, kind) {
    clear(this.trouble, banner(message, kind, true))
  }

  // --- live ------------------------------------------------------------------------------------------------

  /** @param {Operation} op */
  receive(op) {
    if (!this.isOpen(op.conversation)) return
    const { state } = this
    if (this.loading === this.id || state === null) {
      this.buffered.push(op)
      return
    }
    if (op.seq <= state.seq) return
    if (op.prev !== state.seq || (op.op !== 'titled' && !this.thread.apply(op))) {
      this.load()
      return
    }
    state.seq = op.seq
    if (op.op === 'text' || op.op === 'thought') return
    if (op.op === 'titled') state.title = op.title
    if (op.op === 'user' || op.op === 'answer' || op.op === 'cut') state.running = true
    if (op.op === 'user') this.scroller.toEnd()
    if (op.op === 'ended') {
      state.running = false
      this.context.announce(this.thread.announcement)
    }
    this.update()
  }

  // --- what the person does --------------------------------------------------------------------------------

  /** Sends a message, and resolves to whether the server accepted it. @param {string} message */
  async send(message) {
    clear(this.trouble)
    if (!this.picker.value) await Promise.all([this.modelsLoaded, this.loaded]) // the page is still loading
    const model = this.picker.value
    if (!model) {
      this.showMessage('Choose a model first.', 'bad')
      return false
    }
    try {
      let { id } = this
      if (id === undefined) {
        id = (await api.post('/conversations', { model })).id
        this.composer.move(id)
        this.context.navigate(`/ui/chat/${encodeURIComponent(id)}`, { replace: true })
      }
      this.scroller.toEnd() // before the reply: by then the person may be reading something else
      await api.post(`/conversations/${encodeURIComponent(id)}/turns`, { text: message, model })
      return true
    } catch (error) {
      if (api.statusOf(error) === 0)
        this.showMessage('The server does not answer. Your message is kept; send it again later.', 'bad')
      else this.showError(error)
      return false
    }
  }

  async retry() {
    const { id, picker } = this
    if (id === undefined) return
    const path = `/conversations/${encodeURIComponent(id)}/retry`
    await this.attempt(() => api.post(path, { model: picker.value || undefined }))
    this.composer.area.focus()
  }

  async stop() {
    const { id } = this
    if (id !== undefined) await this.attempt(() => api.post(`/conversations/${encodeURIComponent(id)}/stop`))
  }

  /** @param {string} model */
  async changeModel(model) {
    const { id, state } = this
    remember(model)
    if (state) state.model = model
    this.update()
    if (id) await this.attempt(() => api.patch(`/conversations/${encodeURIComponent(id)}`, { model }))
  }

  /** @param {() => Promise<unknown>} action */
  async attempt(action) {
    clear(this.trouble)
    try {
      await action()
    } catch (error) {
      this.showError(error)
    }
  }
}
