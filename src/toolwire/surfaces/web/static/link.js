// The page of a link: one question, for a person who got the link in a message. It works without a session.
//
// Law: opening the page decides nothing. Only its two buttons decide, and not during the first half second.
// The page takes the link's secret out of the fragment of the address, which no browser sends to a server,
// and removes it from there, so that it is not in the browser's history.

/** @import { Approval, Child } from '../types' */

import { messageOf } from './api.js'
import { banner, clear, h, icon, text } from './dom.js'
import { Question } from './question.js'
import { effectOf, lead } from './question-words.js'

const INERT_MS = 500
const LOOK_MS = 4_000
const MOST_REASON = 500
const id = decodeURIComponent(location.pathname.split('/').at(-1) ?? '')
const STORED = `toolwire-link-${id}`
const main = h('main', { class: 'link', id: 'main' })
const news = h('div', { class: 'visually-hidden', 'aria-live': 'polite', role: 'status' })

/** The link's secret. A reload of this tab keeps it. */
function takeSecret() {
  const found = location.hash.slice(1)
  try {
    if (found) sessionStorage.setItem(STORED, found)
    if (found) history.replaceState(null, '', location.pathname)
    return found || (sessionStorage.getItem(STORED) ?? '')
  } catch {
    return found // without storage, the secret stays in the address
  }
}

class LinkError extends Error {
  /** @param {number} status @param {string} message */
  constructor(status, message) {
    super(message)
    this.status = status
  }
}

/**
 * Reads the question. With a `body`, sends a decision about the question.
 *
 * @param {object} [body]
 * @returns {Promise<{ test?: boolean, approval: Approval, status: string }>}
 */
async function call(body) {
  let response
  try {
    response = await fetch(`/ui/api/link/${encodeURIComponent(id)}`, {
      method: body ? 'POST' : 'GET',
      headers: body ? { 'content-type': 'application/json' } : { 'x-toolwire-link': secret },
      body: body && JSON.stringify({ ...body, token: secret }),
      credentials: 'omit',
      cache: 'no-store',
      referrerPolicy: 'no-referrer',
    })
  } catch {
    throw new LinkError(
      0,
      'Toolwire does not answer. Check that this device can reach the machine that runs Toolwire.',
    )
  }
  const answer = await response.json().catch(() => ({}))
  if (response.ok) return answer
  throw new LinkError(response.status, answer.error?.message ?? `The server answered ${response.status}.`)
}

/**
 * Shows a message instead of a question.
 *
 * @param {string} name an icon
 * @param {string} title
 * @param {...Child} about
 */
function show(name, title, ...about) {
  const heading = h('h1', { tabindex: '-1' }, title)
  clear(main, h('div', { class: 'link-end' }, icon(name, 40), heading, h('p', { class: 'muted' }, about)))
  document.title = `${title} · Toolwire`
  heading.focus()
}

/** @param {unknown} error */
function failed(error) {
  const status = error instanceof LinkError ? error.status : 0
  if (status === 410) show('clock', 'This link is no longer valid', messageOf(error))
  else if (status === 403) show('warning', 'This link does not work', messageOf(error))
  else {
    show('warning', 'The approval request cannot be shown', messageOf(error))
    main.append(h('button', { type: 'button', class: 'button', onclick: open }, 'Try again'))
  }
}

async function open() {
  clear(main, h('div', { class: 'loading' }, h('span', { class: 'spinner' }), 'Loading…'))
  if (id !== 'test' && !secret) {
    const message = 'A part of the address is missing. Open the link from the message again.'
    return show('warning', 'This link does not work', message)
  }
  try {
    const { test, approval } = await call()
    if (test)
      return show(
        'check',
        'The link works',
        'This device can reach Toolwire. This link is only a test: there is nothing to decide.',
      )
    new LinkPage(approval)
  } catch (error) {
    failed(error)
  }
}

class LinkPage {
  busy = false
  inertUntil = 0
  inertTimer = 0
  over = false

  /** @param {Approval} approval */
  constructor(approval) {
    this.approval = approval
    this.trouble = h('div', { class: 'approval-trouble stack', role: 'alert' })
    this.time = h('span', { class: 'approval-time muted' })
    this.deny = h(
      'button',
      { type: 'button', class: 'button danger', onclick: () => this.decide(false) },
      'Deny',
    )
    this.approve = h('button', { type: 'button', class: 'button primary', onclick: () => this.decide(true) })
    this.reason = h('input', {
      class: 'input',
      id: 'reason',
      type: 'text',
      maxlength: String(MOST_REASON),
      autocomplete: 'off',
      placeholder: 'Optional',
    })
    this.question = new Question(approval, false, (changed) => (changed ? this.makeInert() : this.enable()))
    this.draw()
    this.makeInert()
    this.tick()
    this.clock = setInterval(() => this.tick(), 1000)
    this.looking = setInterval(() => this.look(), LOOK_MS)
  }

  draw() {
    const heading = h('h1', { tabindex: '-1' }, 'Tool approval request')
    const label = h('label', { class: 'label', for: 'reason' }, 'Reason, if you deny')
    clear(
      main,
      h('header', null, heading, h('h2', { class: 'link-lead' }, lead([this.approval]))),
      this.question.node,
      h('div', { class: 'approval-reason' }, label, this.reason),
      this.trouble,
      h('footer', { class: 'link-foot' }, this.time, this.deny, this.approve),
    )
    heading.focus()
  }

  makeInert() {
    this.inertUntil = performance.now() + INERT_MS
    clearTimeout(this.inertTimer)
    this.inertTimer = setTimeout(() => this.enable(), INERT_MS)
    this.enable()
  }

  get inert() {
    return this.busy || this.over || performance.now() < this.inertUntil
  }

  get ready() {
    return this.question.ready && !this.question.empty
  }

  enable() {
    text(this.approve, this.question.label)
    this.approve.setAttribute('aria-disabled', String(this.inert || !this.ready))
    this.deny.setAttribute('aria-disabled', String(this.inert))
  }

  /** @param {boolean} approved */
  async decide(approved) {
    if (this.inert || (approved && !this.ready)) return
    this.busy = true
    this.enable()
    clear(this.trouble)
    const { picked } = this.question.decision(approved)
    const reason = approved ? '' : this.reason.value.trim()
    try {
      const { id, token: shown } = this.approval
      await call({ id, shown, approved, reason, ...(picked ? { picked } : {}) })
      const done = this.question.shown.problem ? 'The model is informed' : 'Approved'
      const [picture, title] = approved ? ['check', done] : ['close', 'Denied']
      this.end(() => show(picture, title, effectOf(this.approval, this.question.shown, approved)))
    } catch (error) {
      const status = error instanceof LinkError ? error.status : 0
      if (status === 410 || status === 403) this.end(() => failed(error))
      else this.trouble.append(banner(messageOf(error), 'bad'))
    }
    this.busy = false
    this.enable()
  }

  /** Checks whether the question was decided elsewhere, or has expired. */
  async look() {
    if (this.busy || this.over || document.hidden) return
    try {
      await call()
    } catch (error) {
      if (error instanceof LinkError && error.status === 410 && !this.busy) this.end(() => failed(error))
    }
  }

  tick() {
    const left = this.approval.expires_at - Date.now() / 1000
    const time = left > 90 ? `${Math.round(left / 60)} min` : `${Math.max(0, Math.ceil(left))} s`
    text(this.time, `Expires in ${time}`)
    if (left <= 0) this.look()
  }

  /** @param {() => void} next shows how it ended */
  end(next) {
    if (this.over) return
    this.over = true
    clearInterval(this.clock)
    clearInterval(this.looking)
    this.question.decidedHere()
    forget()
    next()
    text(news, document.title)
  }
}

function forget() {
  try {
    sessionStorage.removeItem(STORED)
  } catch {
    // There is no storage.
  }
}

const secret = takeSecret()
document.body.append(main, news)
addEventListener('hashchange', () => location.reload())
open()
