// The settings section with all models: where each is set, whether it can answer, and what can be changed.

/** @import { ModelRow, ModelHealth } from '../types' */
/** @import { Section, SettingsPage } from './settings.js' */

import * as api from './api.js'
import { confirm } from './dialog.js'
import { banner, clear, h, icon, visible, when } from './dom.js'
import { modelForm, testResult } from './model-form.js'
import { section } from './settings-browser.js'

/** @param {SettingsPage} page @returns {Section} */
export function healthSection(page) {
  const notes = h('div', { class: 'stack' })
  const list = h('ul', { class: 'cases', 'aria-label': 'Models and their state' })
  const result = h('div', { 'aria-live': 'polite' })
  const add = h(
    'button',
    { type: 'button', class: 'button primary', onclick: () => edit(null) },
    icon('plus', 16),
    'Add a model',
  )
  const again = h(
    'button',
    { type: 'button', class: 'button', onclick: check },
    icon('retry', 16),
    'Check again',
  )
  const node = section(
    'Models',
    'This list shows whether each model can answer now. Models that you add here are available immediately.',
    notes,
    list,
    result,
    h('div', { class: 'row' }, add, again),
  )
  /** @type {import('../types').ModelList | null} */
  let shown = null
  /** @type {{ [id: string]: ModelHealth }} */
  let health = {}
  let checks = 0

  async function refresh() {
    try {
      shown = await api.get('/settings/models')
      draw()
      await check()
    } catch (error) {
      page.showError(error)
    }
  }

  async function check() {
    checks += 1
    const current = checks
    again.disabled = true
    try {
      const reply = await api.get('/settings/health')
      if (current === checks) health = reply.health
    } catch (error) {
      page.showError(error)
    }
    again.disabled = false
    draw()
  }

  function draw() {
    if (!shown) return
    const { models, locked, restart, problem } = shown
    add.disabled = Boolean(locked)
    clear(
      notes,
      problem ? banner(problem, 'warn') : null,
      locked ? h('p', { class: 'hint' }, locked) : null,
      restart ? h('p', { class: 'hint' }, restart) : null,
    )
    clear(list, models.map(row))
  }

  /** @param {ModelRow} model */
  function row(model) {
    const { id, draft } = model
    const state = health[id]
    const [kind, label] = !state
      ? ['', 'checking']
      : state.ok
        ? ['ok', 'available']
        : ['bad', 'not available']
    const named = visible(id)
    const tried = button('Test', `Test ${named}`, () => tryOut(tried, id))
    const actions = [tried]
    if (draft) {
      actions.push(button('Edit', `Edit ${named}`, () => edit(draft)))
      const drop = button('Remove', `Remove ${named}`, () => remove(id))
      drop.classList.add('danger')
      actions.push(drop)
    }
    const origin = model.origin === 'page' ? 'added on this page' : model.origin || 'found on this machine'
    return h(
      'li',
      { class: 'case' },
      h(
        'div',
        { class: 'case-main' },
        h(
          'div',
          { class: 'row' },
          h('code', { class: 'strong' }, named),
          h('span', { class: `badge ${kind}` }, label),
          h(
            'span',
            { class: 'muted small' },
            visible([model.backend, model.name].filter(Boolean).join(', ')),
          ),
        ),
        state?.reason ? h('p', { class: 'small' }, visible(state.reason)) : null,
        h('p', { class: 'muted small' }, visible(`Source: ${origin}`)),
        lastFailure(model),
      ),
      h('div', { class: 'case-actions row tight' }, actions),
    )
  }

  /** @param {string} label @param {string} name @param {() => unknown} onclick */
  const button = (label, name, onclick) =>
    h('button', { type: 'button', class: 'button small', 'aria-label': name, onclick }, label)

  /** @param {import('../types').ModelDraft | null} draft */
  async function edit(draft) {
    if (shown && (await modelForm(shown.kinds, draft))) {
      page.context.announce('The model has been saved.')
      await refresh()
      add.focus()
    }
  }

  /** @param {HTMLButtonElement} pressed @param {string} id */
  async function tryOut(pressed, id) {
    pressed.disabled = true
    clear(result, h('p', { class: 'row small' }, h('span', { class: 'spinner' }), `Testing ${visible(id)}…`))
    try {
      clear(result, testResult(await api.post('/settings/test', { id })))
    } catch (error) {
      clear(result, banner(api.messageOf(error), 'bad'))
    }
    pressed.disabled = false
    if (document.activeElement === document.body) pressed.focus()
  }

  /** @param {string} id */
  async function remove(id) {
    const content = h('p', null, 'Clients that ask for ', h('code', null, visible(id)), ' will get an error.')
    if (!(await confirm({ title: 'Remove this model?', content, action: 'Remove', danger: true }))) return
    try {
      await api.del(`/settings/models/${encodeURIComponent(id)}`)
      page.context.announce('The model has been removed.')
      await refresh()
      add.focus()
    } catch (error) {
      page.showError(error)
    }
  }
  return { node, show: refresh }
}

/** @param {ModelRow} model */
function lastFailure({ last }) {
  if (!last || last.ok) return null
  const turn = last.turn
    ? h('a', { href: `/ui/wire/${encodeURIComponent(last.turn)}` }, 'Show this request')
    : null
  return h(
    'p',
    { class: 'small' },
    'The last request failed ',
    when(last.at),
    ': ',
    visible(last.reason),
    ' ',
    turn,
  )
}
