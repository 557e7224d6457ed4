// The message field. Enter sends the message, Shift+Enter adds a line. The tab keeps a draft for each
// conversation until it is closed.

/** @import { Child } from '../types' */

import { h, icon } from './dom.js'

/** @param {string | undefined} id */
const draftKey = (id) => `toolwire-draft:${id || 'new'}`

export class Composer {
  /**
   * `send` resolves to whether the message was accepted. `left` is shown beside the buttons.
   *
   * @param {{ send: (message: string) => Promise<boolean>, stop: () => unknown, left: Child }} options
   */
  constructor({ send, stop, left }) {
    this.onsend = send
    /** @type {string | undefined} */
    this.id = ''
    this.running = false
    this.sending = false
    this.sendAgain = false
    this.edited = false // since the last message was sent
    this.area = h('textarea', {
      class: 'composer-text',
      rows: '1',
      id: 'composer',
      'aria-label': 'Message',
      placeholder: 'Ask anything',
      oninput: () => this.changed(),
      onkeydown: (event) => this.key(event),
    })
    this.sendButton = h(
      'button',
      {
        type: 'submit',
        class: 'button primary square composer-send',
        'aria-label': 'Send',
        title: 'Send (Enter)',
      },
      icon('send'),
    )
    this.stopButton = h(
      'button',
      {
        type: 'button',
        class: 'button square composer-stop',
        'aria-label': 'Stop',
        title: 'Stop',
        hidden: true,
        onclick: stop,
      },
      icon('stop'),
    )
    this.node = h(
      'form',
      {
        class: 'composer',
        onsubmit: (event) => {
          event.preventDefault()
          this.submit()
        },
      },
      this.area,
      h(
        'div',
        { class: 'composer-bar' },
        h('div', { class: 'grow row' }, left),
        this.stopButton,
        this.sendButton,
      ),
    )
  }

  /** Switches to another conversation and its draft. @param {string | undefined} id */
  open(id) {
    this.id = id
    this.area.value = storedDraft(id)
    this.resize()
    this.update()
  }

  /** Makes the text the draft of a conversation that was just created. @param {string} id */
  move(id) {
    storeDraft(this.id, '')
    this.id = id
    storeDraft(id, this.area.value)
  }

  /** @param {string} message */
  set(message) {
    this.area.value = message
    this.changed()
    this.area.focus()
    this.area.setSelectionRange(message.length, message.length)
  }

  changed() {
    this.edited = true
    storeDraft(this.id, this.area.value)
    this.resize()
    this.update()
  }

  resize() {
    this.area.style.setProperty('height', 'auto')
    this.area.style.setProperty('height', `${Math.min(this.area.scrollHeight, 320)}px`)
  }

  /** @param {boolean} running */
  run(running) {
    this.running = running
    const focused = this.stopButton === document.activeElement
    this.stopButton.hidden = !running
    if (!running && focused) this.area.focus()
    this.update()
  }

  update() {
    const blocked = !this.area.value.trim() || this.running || this.sending
    this.sendButton.setAttribute('aria-disabled', String(blocked))
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return
    event.preventDefault()
    this.submit()
  }

  async submit() {
    const message = this.area.value
    if (!message.trim() || this.running) return
    if (this.sending) {
      // The person sent another message, maybe the same words, before the server accepted the last one.
      this.sendAgain = this.edited
      return
    }
    this.sending = true
    this.sendAgain = this.edited = false
    this.update()
    const from = this.id
    let accepted = false
    try {
      accepted = await this.onsend(message)
    } finally {
      this.sending = false
    }
    if (accepted) {
      storeDraft(from, '')
      if (!this.edited && this.area.value === message) this.area.value = ''
      storeDraft(this.id, this.area.value)
      this.resize()
    }
    this.update()
    if (this.sendAgain && accepted) this.submit()
  }
}

/** @param {string | undefined} id */
function storedDraft(id) {
  try {
    return sessionStorage.getItem(draftKey(id)) ?? ''
  } catch {
    return ''
  }
}

/** @param {string | undefined} id @param {string} message */
function storeDraft(id, message) {
  try {
    if (message) sessionStorage.setItem(draftKey(id), message)
    else sessionStorage.removeItem(draftKey(id))
  } catch {
    // Without storage, the draft is only in the field.
  }
}
