// Settings of this browser: the approval code, a link that signs in another browser, signing out, the theme.

/** @import { Child } from '../types' */
/** @import { Section, SettingsPage } from './settings.js' */

import * as api from './api.js'
import { codeDialog } from './approval-code.js'
import { confirm } from './dialog.js'
import { clear, copyButton, h, icon } from './dom.js'

const THEMES = [
  ['system', 'Same as the system'],
  ['light', 'Light'],
  ['dark', 'Dark'],
]
const STORED = 'toolwire-theme'

const NO_CODE =
  'No approval code is set. Until you set one, any program that runs under your user account can set one ' +
  'and use it to approve calls from MCP clients.'
const NO_CODE_HERE =
  'No approval code is set. This browser cannot set one. Open the link that “toolwire serve” prints when ' +
  'it starts, and set the code there.'
const CANNOT =
  'This browser cannot approve any call until you enter the code, or open the link that “toolwire serve” ' +
  'prints when it starts.'
const OWN_CALLS = 'This browser can approve calls from the chat on these pages.'
const SET_CODE = 'To approve calls from other programs, such as MCP clients, set a code.'
const ASKS_FOR_CODE = 'When you approve a call from another program, Toolwire asks for the code.'

/** A panel of the settings page. @param {string} name @param {string} about @param {...Child} children */
export function section(name, about, ...children) {
  return h(
    'section',
    { class: 'panel stack loose' },
    h('div', null, h('h2', null, name), about ? h('p', { class: 'muted small' }, about) : null),
    children,
  )
}

/**
 * The approval code: whether it is set, and a button that sets it.
 *
 * @param {SettingsPage} page
 * @returns {Section}
 */
export function codeSection(page) {
  const state = h('p', { 'aria-live': 'polite' })
  const button = h(
    'button',
    { type: 'button', class: 'button', onclick: change },
    icon('key', 16),
    'Set code',
  )
  async function show() {
    try {
      const { decides, code, entered } = (await api.session()).approving
      const may = !decides
        ? CANNOT
        : entered
          ? 'This browser can approve every call.'
          : `${OWN_CALLS} ${code ? ASKS_FOR_CODE : SET_CODE}`
      const set = code ? 'An approval code is set.' : NO_CODE
      state.textContent = code || decides ? `${set} ${may}` : NO_CODE_HERE
      button.lastChild?.replaceWith(
        decides ? (code ? 'Set a new code' : 'Set code') : entered ? 'Set a new code' : 'Enter code',
      )
      button.disabled = !decides && !code
    } catch (error) {
      page.showError(error)
    }
  }
  async function change() {
    const { decides, code } = (await api.session()).approving
    const message =
      decides && code
        ? 'Remembered approvals that are signed with the current code will no longer be valid.'
        : 'With the code, this browser can approve every call.'
    if (await codeDialog(message, decides, 'Cancel')) await show()
  }
  const about =
    'With the code, you can approve calls from other programs, such as MCP clients, on these pages. In a ' +
    'terminal, the code lets you approve calls that come from another terminal or program. Once ' +
    'you have set or entered the code, approvals that you let Toolwire remember stay valid when Toolwire ' +
    'restarts.'
  return { node: section('Approval code', about, state, h('div', { class: 'row' }, button)), show }
}

/** @param {SettingsPage} page @returns {Section} */
export function signInSection(page) {
  const body = h('div', { 'aria-live': 'polite' })
  const create = h(
    'button',
    { type: 'button', class: 'button', onclick: createLink },
    icon('key', 16),
    'Link for another browser',
  )
  const leave = h('button', { type: 'button', class: 'button danger', onclick: signOut }, 'Sign out')
  async function createLink() {
    create.disabled = true
    try {
      const { url } = await api.post('/session/link')
      const field = h('input', {
        class: 'input mono',
        readOnly: true,
        value: url,
        'aria-label': 'One-time link',
      })
      field.addEventListener('focus', () => field.select())
      const hint =
        'The link works once. Anyone who opens it can use these pages as you do, so keep it to yourself.'
      clear(
        body,
        h(
          'div',
          { class: 'stack' },
          h('div', { class: 'row nowrap' }, field, copyButton(url)),
          h('p', { class: 'hint' }, hint),
        ),
      )
    } catch (error) {
      page.showError(error)
    }
    create.disabled = false
  }
  async function signOut() {
    const content = [
      'To sign in again, run ',
      h('code', null, 'toolwire open'),
      ', open a new link, or use an admin key.',
    ]
    const title = 'Sign out of this browser?'
    if (!(await confirm({ title, content: h('p', null, content), action: 'Sign out', danger: true }))) return
    try {
      await api.del('/session')
      location.assign('/')
    } catch (error) {
      page.showError(error)
    }
  }
  const about = 'This browser is signed in. The section “Approval code” shows which calls it can approve.'
  return { node: section('Sign-in', about, h('div', { class: 'row' }, create, leave), body) }
}

/** @returns {Section} */
export function appearance() {
  const html = document.documentElement
  const radios = THEMES.map(([id]) =>
    h('input', { type: 'radio', name: 'theme', value: id, onchange: () => choose(id) }),
  )
  const choices = THEMES.map(([, label], at) => h('label', { class: 'choice' }, radios[at], label))
  const legend = h('legend', { class: 'visually-hidden' }, 'Theme')
  const node = section('Appearance', '', h('fieldset', { class: 'choices' }, legend, choices))
  /** @param {string} id */
  function choose(id) {
    if (id === 'system') delete html.dataset.theme
    else html.dataset.theme = id
    try {
      if (id === 'system') localStorage.removeItem(STORED)
      else localStorage.setItem(STORED, id)
    } catch {
      // Without storage the theme applies to this tab.
    }
  }
  const draw = () => {
    for (const radio of radios) radio.checked = radio.value === (html.dataset.theme ?? 'system')
  }
  const observer = new MutationObserver(draw) // the button of the shell changes it too
  observer.observe(html, { attributeFilter: ['data-theme'] })
  draw()
  return { node, close: () => observer.disconnect() }
}
