// The approvals of the open conversation: the dialog opens at once for calls that wait for a decision.

/** @import { Approval } from '../types' */
/** @import { Chat } from './chat.js' */

import * as api from './api.js'
import { ask, asking } from './approval.js'

export class Approvals {
  checking = false
  again = false
  /** @type {Set<string>} the ids of approvals that the person decides later */
  later = new Set()

  /** @param {Chat} chat */
  constructor(chat) {
    this.chat = chat
  }

  /** Opens the dialog for all calls that wait, even those that the person wanted to decide later. */
  review() {
    this.later.clear()
    return this.check()
  }

  /** Opens the dialog if calls of the conversation wait for a decision. */
  async check() {
    const { chat } = this
    const { id, left } = chat
    if (!id || chat.ended || asking()) return
    if (this.checking) {
      this.again = true // the reply on its way may be older than this news
      return
    }
    this.checking = true
    /** @type {Approval[]} */
    let own = []
    try {
      do {
        this.again = false
        own = await this.waiting(id)
      } while (this.again && !own.length && chat.isOpen(id))
    } catch (error) {
      chat.showError(error)
    } finally {
      this.checking = false
    }
    if (!chat.isOpen(id)) {
      this.check()
      return
    }
    if (!own.length || asking()) return
    const inOrder = own.reverse().sort((a, b) => a.created_at - b.created_at)
    const { elsewhere, later } = await ask(inOrder, chat.context, { signal: left.signal, conversation: id })
    if (!left.signal.aborted) for (const one of later) this.later.add(one)
    if (!chat.isOpen(id)) return
    if (elsewhere.length) chat.showMessage(elsewhere.join(' '), '')
    this.check()
  }

  /** @param {string} id */
  async waiting(id) {
    const { approvals } = await api.get('/approvals?status=pending&limit=200')
    return approvals.filter((one) => one.session === id && one.surface === 'web' && !this.later.has(one.id))
  }
}
