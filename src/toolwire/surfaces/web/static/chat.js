// The chat: a person, a model, the vault's tools, and the person's word before any of them runs.
//
// What is shown is the server's state plus the live changes to it, in their order: one that does not follow on what is shown has the conversation
// fetched anew. Questions of the conversation that is open are asked at once.

import * as api from './api.js'
import { ask, asking } from './approval.js'
import { Composer } from './composer.js'
import { ConversationList } from './conversations.js'
import { banner, clear, h, icon, text } from './dom.js'
import { ModelPicker, preferred, remember } from './model-picker.js'
import { Scroller } from './scroller.js'
import { Thread } from './thread.js'
import { welcome } from './welcome.js'

export const title = 'Chat'

export async function open(main, context) {
  const chat = new Chat(main, context)
  await chat.go(context.id)
  const close = () => chat.end()
  close.go = (id) => chat.go(id)
  return close
}

const path = (id, rest = '') => `/conversations/${encodeURIComponent(id)}${rest}`

class Chat {
  constructor(main, context) {
    this.context = context
    this.id = undefined
    this.state = null // {id, title, model, running, seq} of what is shown
    this.waiting = [] // live changes that came while the conversation was fetched
    this.models = []
    this.gone = new AbortController()
    this.heading = h('h1', { class: 'chat-title ellipsis', tabindex: '-1' }, 'New chat')
    this.thread = new Thread({ retry: () => this.retry(), review: () => this.questions() })
    this.empty = h('div', { class: 'chat-empty' })
    this.scroller = new Scroller(h('div', { class: 'chat-column' }, this.empty, this.thread.node))
    this.trouble = h('div', { class: 'chat-trouble stack' })
    this.hint = h('p', { class: 'composer-hint muted' })
    this.picker = new ModelPicker((model) => this.remodel(model))
    this.composer = new Composer({
      send: (words) => this.send(words),
      stop: () => this.stop(),
      left: this.picker.node,
    })
    this.list = new ConversationList(context, {
      trouble: (error) => this.fail(error),
      deleted: (id) => id === this.id && context.navigate('/'),
      picked: () => this.side(false),
    })
    this.draw(main)
    const { live } = context
    this.offs = [
      live.on('chat', (op) => this.heard(op)),
      live.on('approvals', () => this.questions()),
      live.on('lost', () => this.again()),
      live.on('settings', () => this.settings()),
    ]
    this.loaded = this.loadModels()
    this.list.load()
  }

  draw(main) {
    this.toggle = h(
      'button',
      {
        type: 'button',
        class: 'button quiet square chat-toggle',
        'aria-label': 'Conversations',
        'aria-expanded': 'false',
        onclick: () => this.side(!this.page.classList.contains('side-open')),
      },
      icon('list'),
    )
    this.tools = h('div', { class: 'chat-tools' })
    const head = h('header', { class: 'chat-head' }, this.toggle, this.heading, this.tools)
    const foot = h(
      'div',
      { class: 'chat-foot' },
      this.scroller.button,
      h('div', { class: 'chat-column' }, this.trouble, this.composer.node, this.hint),
    )
    this.page = h(
      'div',
      { class: 'chat' },
      this.list.node,
      h('div', { class: 'chat-veil', onclick: () => this.side(false) }),
      h('div', { class: 'chat-main' }, head, this.scroller.node, foot),
    )
    this.page.addEventListener('keydown', (event) => {
      if (event.key === 'Escape' && this.page.classList.contains('side-open')) this.side(false)
    })
    main.append(this.page)
  }

  /** The list of conversations, where it does not stand beside. */
  side(on) {
    this.page.classList.toggle('side-open', on)
    this.toggle.setAttribute('aria-expanded', String(on))
    if (on) this.list.search.focus()
    else if (this.list.node.contains(document.activeElement)) this.toggle.focus()
  }

  end() {
    this.gone.abort()
    for (const off of this.offs) off()
    this.list.end()
    this.picker.end()
    this.scroller.end()
    this.id = null
  }

  // --- what is shown -----------------------------------------------------------------------------------------------------------------------------

  async go(id) {
    if (id === this.id && id !== undefined) return
    this.id = id
    if (this.list.node.contains(document.activeElement)) this.heading.focus()
    this.gone.abort() // a question that is open belongs to the conversation that is left
    this.gone = new AbortController()
    this.state = null
    this.waiting = []
    clear(this.trouble)
    this.thread.cut(0)
    this.list.go(id)
    this.composer.open(id)
    if (id === undefined) this.fresh()
    else await (this.fetched = this.fetch())
    this.scroller.toEnd()
  }

  fresh() {
    this.shown({ title: '', model: preferred(this.models), running: false, entries: [] })
    if (matchMedia('(pointer: fine)').matches && this.page.isConnected) this.composer.area.focus()
  }

  async again() {
    this.loadModels()
    if (this.id) await this.fetch()
  }

  async fetch() {
    const { id } = this
    if (this.fetching === id) {
      this.stale = true
      return
    }
    this.fetching = id
    try {
      const told = await api.get(path(id))
      if (id !== this.id) return
      this.state = { seq: told.seq }
      this.shown(told)
      const waiting = this.waiting.splice(0)
      this.fetching = null
      for (const op of waiting) this.heard(op)
      this.questions()
    } catch (error) {
      if (id !== this.id) return
      if (error.status === 404) this.missing()
      else this.fail(error)
    } finally {
      if (this.fetching === id) this.fetching = null
      if (this.stale) {
        this.stale = false
        this.fetch()
      }
    }
  }

  missing() {
    this.shown({ title: 'Not found', model: '', running: false, entries: [] })
    clear(
      this.empty,
      h(
        'div',
        { class: 'empty' },
        icon('chat'),
        h('h2', null, 'There is no such conversation'),
        h('p', null, 'It may have been deleted.'),
        h('a', { class: 'button', href: '/' }, 'New chat'),
      ),
    )
  }

  shown(told) {
    this.state = {
      ...this.state,
      id: told.id,
      title: told.title,
      model: told.model,
      running: told.running,
      count: told.entries.length,
    }
    this.thread.set(told.entries, told.running)
    this.picker.set(this.models, told.model)
    this.update()
  }

  update() {
    const { state } = this
    if (state === null) return
    const name = state.title || 'New chat'
    text(this.heading, name)
    this.context.entitle(name === 'New chat' ? 'Chat' : name)
    this.composer.run(state.running)
    this.thread.run(state.running)
    const nothing = this.thread.views.length === 0
    this.empty.hidden = !nothing
    if (nothing && state.title !== 'Not found')
      clear(
        this.empty,
        welcome(this.context.session, this.picker.model, (words) => this.composer.set(words)),
      )
    if (this.toolsFor !== state.id) this.drawTools(state.id)
    this.drawHint()
  }

  drawTools(id) {
    this.toolsFor = id
    if (!id) return clear(this.tools)
    const rename = h(
      'button',
      {
        type: 'button',
        class: 'button quiet square',
        'aria-label': 'Rename this conversation',
        title: 'Rename',
        onclick: () => this.list.rename(id, this.state.title),
      },
      icon('pencil'),
    )
    const note = h(
      'a',
      {
        class: 'button quiet',
        href: api.url(path(id, '/note')),
        download: '',
        title: 'Export to a Markdown note',
        'aria-label': 'Export to a Markdown note',
      },
      icon('download'),
      h('span', { class: 'wide-only' }, 'Export'),
    )
    const remove = h(
      'button',
      {
        type: 'button',
        class: 'button quiet danger square',
        'aria-label': 'Delete this conversation',
        title: 'Delete',
        onclick: () => this.list.remove(id, this.state.title || 'New chat'),
      },
      icon('trash'),
    )
    return clear(this.tools, rename, note, remove)
  }

  drawHint() {
    const { model } = this.picker
    const { session } = this.context
    let words = 'Enter sends, Shift+Enter begins a new line.'
    if (model && !model.may_use_tools && session.tool_calling)
      words =
        model.tools === 'none'
          ? 'This model can not call tools.'
          : 'This model is not among those that may use tools (Settings).'
    else if (!session.tool_calling) words = 'Tool calling is off: the model sees only what you write.'
    text(this.hint, words)
  }

  async loadModels() {
    try {
      this.models = (await api.get('/models')).models
      if (this.state) {
        if (!this.state.id && !this.models.some((one) => one.id === this.state.model))
          this.state.model = preferred(this.models)
        this.picker.set(this.models, this.state.model)
        this.update()
      }
    } catch (error) {
      this.fail(error)
    }
  }

  async settings() {
    try {
      Object.assign(this.context.session, await api.session())
    } catch (error) {
      this.fail(error)
    }
    await this.loadModels()
  }

  fail(error) {
    if (error.status === 401 || error.status === 0 || error.name === 'AbortError') return // said elsewhere
    clear(this.trouble, banner(error.message, 'bad', true))
  }

  // --- live ----------------------------------------------------------------------------------------------------------------------------------------

  heard(op) {
    if (op.conversation !== this.id) return
    if (this.fetching === this.id || this.state === null) {
      this.waiting.push(op)
      return
    }
    if (op.seq <= this.state.seq) return
    if (op.prev !== this.state.seq || (op.op !== 'titled' && !this.thread.apply(op))) {
      this.fetch()
      return
    }
    this.state.seq = op.seq
    if (op.op === 'text' || op.op === 'thought') return
    if (op.op === 'titled') this.state.title = op.title
    if (op.op === 'user' || op.op === 'answer' || op.op === 'cut') this.state.running = true
    if (op.op === 'user') this.scroller.toEnd()
    if (op.op === 'ended') this.ended()
    this.update()
  }

  ended() {
    this.state.running = false
    const words = this.thread.views.at(-1)?.text ?? ''
    this.context.announce(
      words ? `Answer: ${words.length > 400 ? `${words.slice(0, 400)}…` : words}` : 'The turn has ended.',
    )
  }

  /** Asks what waits for a decision in this conversation. */
  async questions() {
    const { id, gone } = this
    if (!id || asking()) return
    if (this.looking) {
      this.unsure = true // what is being fetched may be older than this news
      return
    }
    this.looking = true
    let own = []
    try {
      do {
        this.unsure = false
        const { approvals } = await api.get('/approvals?status=pending&limit=200')
        own = approvals.filter((one) => one.session === id && one.surface === 'web')
      } while (this.unsure && !own.length && id === this.id)
    } catch (error) {
      this.fail(error)
    } finally {
      this.looking = false
    }
    if (id !== this.id) this.questions()
    if (id !== this.id || !own.length || asking()) return
    const inOrder = own.reverse().sort((a, b) => a.created_at - b.created_at)
    const { elsewhere } = await ask(inOrder, this.context, { signal: gone.signal })
    if (id !== this.id) return
    if (elsewhere.length) clear(this.trouble, banner(elsewhere.join(' '), '', true))
    this.questions()
  }

  // --- what the person does --------------------------------------------------------------------------------------------------------------------------

  /** Whether the words were taken. */
  async send(words) {
    clear(this.trouble)
    if (!this.picker.value) await Promise.all([this.loaded, this.fetched]) // who is quicker than the page waits for it
    const model = this.picker.value
    if (!model) {
      this.fail(new Error('Choose a model first.'))
      return false
    }
    try {
      let { id } = this
      if (id === undefined) {
        id = (await api.post('/conversations', { model })).id
        this.composer.move(id)
        this.context.navigate(`/ui/chat/${encodeURIComponent(id)}`, { replace: true })
      }
      this.scroller.toEnd() // not when it is taken: by then the person may have turned to something else
      await api.post(path(id, '/turns'), { text: words, model })
      return true
    } catch (error) {
      if (error.status === 0)
        clear(
          this.trouble,
          banner(
            'The server does not answer. Your message is kept; send it again when the server is back.',
            'bad',
            true,
          ),
        )
      else this.fail(error)
      return false
    }
  }

  async retry() {
    await this.attempt(() => api.post(path(this.id, '/retry'), { model: this.picker.value || undefined }))
    this.composer.area.focus()
  }

  async stop() {
    await this.attempt(() => api.post(path(this.id, '/stop')))
  }

  async remodel(model) {
    remember(model)
    this.state.model = model
    this.update()
    if (this.id) await this.attempt(() => api.patch(path(this.id), { model }))
  }

  async attempt(action) {
    clear(this.trouble)
    try {
      await action()
    } catch (error) {
      this.fail(error)
    }
  }
}
