// Settings of this browser alone: signing in elsewhere, signing out, light and dark.

import { confirmed } from './confirm.js'
import { clear, copyButton, h, icon } from './dom.js'

const THEMES = [
  ['system', 'As the system'],
  ['light', 'Light'],
  ['dark', 'Dark'],
]
const THEME = 'toolwire-theme'

/** A panel of the settings page. */
export function section(name, words, ...children) {
  return h(
    'section',
    { class: 'panel stack loose' },
    h('div', null, h('h2', null, name), words ? h('p', { class: 'muted small' }, words) : null),
    children,
  )
}

export function signIn(page) {
  const held = h('div', { 'aria-live': 'polite' })
  const make = h(
    'button',
    { type: 'button', class: 'button', onclick: link },
    icon('key', 16),
    'Link for another browser',
  )
  const leave = h('button', { type: 'button', class: 'button danger', onclick: out }, 'Sign out')
  async function link() {
    make.disabled = true
    try {
      const { url } = await page.context.api.post('/session/link')
      const field = h('input', {
        class: 'input mono',
        readOnly: true,
        value: url,
        'aria-label': 'One-time link',
        onfocus: () => field.select(),
      })
      clear(
        held,
        h(
          'div',
          { class: 'stack' },
          h('div', { class: 'row nowrap' }, field, copyButton(url)),
          h(
            'p',
            { class: 'hint' },
            'It works once, and lets whoever opens it decide about tool calls. Give it to nobody else.',
          ),
        ),
      )
    } catch (error) {
      page.failed(error)
    }
    make.disabled = false
  }
  async function out() {
    const content = h(
      'p',
      null,
      'To come back you need a new link: toolwire serve prints one when it starts, and another signed-in browser can make one here.',
    )
    if (!(await confirmed({ title: 'Sign out of this browser?', content, yes: 'Sign out', danger: true })))
      return
    try {
      await page.context.api.del('/session')
      location.assign('/')
    } catch (error) {
      page.failed(error)
    }
  }
  return {
    node: section(
      'Sign-in',
      'This browser is signed in. Only signed-in browsers can approve anything.',
      h('div', { class: 'row' }, make, leave),
      held,
    ),
  }
}

export function appearance() {
  const html = document.documentElement
  const radios = THEMES.map(([id]) =>
    h('input', { type: 'radio', name: 'theme', value: id, onchange: () => choose(id) }),
  )
  const node = section(
    'Appearance',
    null,
    h(
      'fieldset',
      { class: 'choices' },
      h('legend', { class: 'visually-hidden' }, 'Theme'),
      THEMES.map(([, label], at) => h('label', { class: 'choice' }, radios[at], label)),
    ),
  )
  function choose(id) {
    if (id === 'system') delete html.dataset.theme
    else html.dataset.theme = id
    try {
      if (id === 'system') localStorage.removeItem(THEME)
      else localStorage.setItem(THEME, id)
    } catch {
      // it holds for this tab
    }
  }
  const draw = () => {
    for (const radio of radios) radio.checked = radio.value === (html.dataset.theme ?? 'system')
  }
  const watch = new MutationObserver(draw) // the button of the shell changes it too
  watch.observe(html, { attributeFilter: ['data-theme'] })
  draw()
  return { node, close: () => watch.disconnect() }
}
