// Where the person writes. Enter sends, Shift+Enter breaks the line. A draft is kept per conversation for as long as the tab lives.

import { h, icon } from './dom.js'

const key = (id) => `toolwire-draft:${id || 'new'}`

export class Composer {
  /** `send(text)` resolves to whether it was taken; `stop()` stops the turn. `left` stands beside the buttons. */
  constructor({ send, stop, left }) {
    this.onsend = send
    this.id = ''
    this.running = false
    this.sending = false
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

  /** Goes to another conversation: its draft comes back. */
  open(id) {
    this.id = id
    this.area.value = stored(key(id))
    this.resize()
    this.update()
  }

  /** What is written becomes the draft of a conversation that has begun. */
  move(id) {
    keep(key(this.id), '')
    this.id = id
    keep(key(id), this.area.value)
  }

  set(words) {
    this.area.value = words
    this.changed()
    this.area.focus()
    this.area.setSelectionRange(words.length, words.length)
  }

  changed() {
    keep(key(this.id), this.area.value)
    this.resize()
    this.update()
  }

  resize() {
    this.area.style.setProperty('height', 'auto')
    this.area.style.setProperty('height', `${Math.min(this.area.scrollHeight, 320)}px`)
  }

  run(running) {
    this.running = running
    const held = this.stopButton === document.activeElement
    this.stopButton.hidden = !running
    if (!running && held) this.area.focus()
    this.update()
  }

  update() {
    this.sendButton.setAttribute(
      'aria-disabled',
      String(!this.area.value.trim() || this.running || this.sending),
    )
  }

  key(event) {
    if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return
    event.preventDefault()
    this.submit()
  }

  async submit() {
    const words = this.area.value
    if (!words.trim() || this.running) return
    if (this.sending) {
      this.again = true // who is quicker than the server is not passed over
      return
    }
    this.sending = true
    this.again = false
    this.update()
    const from = this.id
    let taken = false
    try {
      taken = await this.onsend(words)
    } finally {
      this.sending = false
    }
    if (taken) {
      keep(key(from), '')
      if (this.area.value === words) this.area.value = ''
      keep(key(this.id), this.area.value)
      this.resize()
    }
    this.update()
    if (this.again && taken) this.submit()
  }
}

function stored(name) {
  try {
    return sessionStorage.getItem(name) ?? ''
  } catch {
    return ''
  }
}

function keep(name, words) {
  try {
    if (words) sessionStorage.setItem(name, words)
    else sessionStorage.removeItem(name)
  } catch {
    // no storage: the draft lives in the field
  }
}
