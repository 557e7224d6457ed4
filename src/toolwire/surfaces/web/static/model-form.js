// The dialog that adds or changes a model, with a test that makes a real tool call.
//
// Law: a pasted key goes to the server once and never comes back. The form shows only references to keys.

/** @import { Child, ModelDraft, ModelKind, ModelTest } from '../types' */

import * as api from './api.js'
import { frame, show } from './dialog.js'
import { banner, clear, h, icon, ms, text } from './dom.js'

const KEYS = [
  ['none', 'No key'],
  ['env', 'In an environment variable of Toolwire’s server'],
  ['file', 'In a file on Toolwire’s server'],
  ['paste', 'Paste it here'],
]
const STORED = 'The key is stored in a private file on Toolwire’s server and never shown again.'

/**
 * Opens the form. Resolves to true if a model was saved.
 *
 * @param {ModelKind[]} kinds
 * @param {ModelDraft | null} before the model that is changed; null: a new one
 * @returns {Promise<boolean>}
 */
export function modelForm(kinds, before) {
  const { dialog, heading, close, body, foot } = frame(before ? `Change ${before.id}` : 'Add a model')
  /** @param {string} name */
  const id = (name) => `${heading.id}-${name}`
  let saved = false

  const kind = h(
    'select',
    { class: 'select', id: id('kind'), onchange: draw },
    kinds.map((one) => h('option', { value: one.id }, one.name)),
  )
  const name = input('name', { placeholder: 'qwen', maxlength: '64', disabled: Boolean(before) })
  const address = input('address', { type: 'url', maxlength: '500' })
  const model = input('model', { list: id('names'), maxlength: '200' })
  const names = h('datalist', { id: id('names') })
  const look = h(
    'button',
    { type: 'button', class: 'button', 'aria-label': 'Find models', onclick: findNames },
    'Find',
  )
  const found = h('p', { class: 'hint', role: 'status' })
  const where = h(
    'select',
    { class: 'select', id: id('where'), onchange: draw },
    KEYS.map(([value, label]) => h('option', { value }, label)),
  )
  const key = input('key', { maxlength: '500' })
  const pasted = input('pasted', { type: 'password', autocomplete: 'off', maxlength: '4096' })
  const result = h('div', { 'aria-live': 'polite' })
  const test = h('button', { type: 'button', class: 'button', onclick: tryOut }, icon('play', 16), 'Test')
  const save = h('button', { type: 'submit', class: 'button primary' }, before ? 'Save' : 'Add model')
  const cancel = h('button', { type: 'button', class: 'button' }, 'Cancel')
  const formId = id('form')
  save.setAttribute('form', formId)

  /** @param {string} part @param {object} [props] */
  function input(part, props = {}) {
    return h('input', {
      class: 'input',
      type: 'text',
      id: id(part),
      spellcheck: 'false',
      autocapitalize: 'off',
      ...props,
    })
  }
  /** @param {string} label @param {HTMLElement} control @param {...Child} more */
  const field = (label, control, ...more) =>
    h('div', { class: 'field' }, h('label', { class: 'label', for: control.id }, label), control, more)

  const addressField = field('Address', address)
  const modelField = field(
    'Model',
    h('div', { class: 'row nowrap', id: id('model-row') }, model, look),
    names,
    h(
      'p',
      { class: 'hint' },
      'The model’s name on its server, or ',
      h('code', null, '*'),
      ' for all models of that server.',
    ),
    found,
  )
  modelField.querySelector('label')?.setAttribute('for', model.id)
  const whereField = field('Key', where)
  const keyLabel = h('label', { class: 'label', for: key.id })
  const keyField = h('div', { class: 'field' }, keyLabel, key)
  const pastedField = field('Pasted key', pasted, h('p', { class: 'hint' }, STORED))
  body.append(
    h(
      'form',
      { class: 'stack loose', id: formId, onsubmit: submit },
      field('Kind of model', kind),
      addressField,
      whereField,
      keyField,
      pastedField,
      modelField,
      field(
        'Name',
        name,
        h(
          'p',
          { class: 'hint' },
          'What clients send as “model”. If the field Model contains ',
          h('code', null, '*'),
          ', clients send ',
          h('code', null, 'NAME/MODEL'),
          '.',
        ),
      ),
      result,
    ),
  )
  foot.append(test, cancel, save)

  const chosen = () => kinds.find((one) => one.id === kind.value) ?? kinds[0]

  function draw() {
    const { asks, base_url: usual, key: variable, lists } = chosen()
    addressField.hidden = !asks.includes('base_url')
    address.placeholder = usual || 'http://127.0.0.1:8000/v1'
    modelField.hidden = !asks.includes('model')
    look.hidden = !lists
    whereField.hidden = !asks.includes('api_key')
    keyField.hidden = whereField.hidden || !['env', 'file'].includes(where.value)
    pastedField.hidden = whereField.hidden || where.value !== 'paste'
    text(keyLabel, where.value === 'file' ? 'Path of the file with the key' : 'Name of the variable')
    key.placeholder = where.value === 'file' ? '/home/you/.keys/openai' : variable || 'MY_API_KEY'
    clear(result)
  }

  /** @returns {ModelDraft & { pasted: string }} */
  function draft() {
    const typed = key.value.trim()
    const kept = where.value === 'env' || where.value === 'file' ? `${where.value}:${typed}` : ''
    return {
      id: name.value.trim(),
      kind: kind.value,
      model: model.value.trim(),
      base_url: address.value.trim(),
      key: kept,
      pasted: where.value === 'paste' ? pasted.value.trim() : '',
    }
  }

  /** @param {HTMLButtonElement} button @param {() => Promise<void>} work */
  async function busy(button, work) {
    button.disabled = true
    try {
      await work()
    } catch (error) {
      clear(result, banner(api.messageOf(error), 'bad'))
      result.scrollIntoView({ block: 'nearest' })
    }
    button.disabled = false
    if (document.activeElement === document.body) button.focus()
  }

  async function findNames() {
    text(found, 'Asking the model’s server…')
    await busy(look, async () => {
      try {
        const reply = await api.post('/settings/names', draft())
        clear(
          names,
          reply.names.map((one) => h('option', { value: one })),
        )
        const few = reply.names.slice(0, 5).join(', ')
        text(
          found,
          reply.names.length ? `Found ${reply.names.length}: ${few}` : 'The model’s server lists no models.',
        )
        if (!model.value && reply.names.length) model.value = reply.names[0]
      } catch (error) {
        text(found, '')
        throw error
      }
    })
  }

  async function tryOut() {
    clear(result, h('p', { class: 'row small', role: 'status' }, h('span', { class: 'spinner' }), 'Testing…'))
    await busy(test, async () => {
      clear(result, testResult(await api.post('/settings/test', { draft: draft() })))
      result.scrollIntoView({ block: 'nearest' })
    })
  }

  /** @param {SubmitEvent} event */
  async function submit(event) {
    event.preventDefault()
    await busy(save, async () => {
      const sent = draft()
      if (before) await api.put(`/settings/models/${encodeURIComponent(before.id)}`, sent)
      else await api.post('/settings/models', sent)
      saved = true
      dialog.close()
    })
  }

  if (before) {
    kind.value = before.kind
    name.value = before.id
    address.value = before.base_url
    model.value = before.model
    const [kept, ...rest] = before.key.split(':')
    where.value = before.key ? kept : 'none'
    key.value = rest.join(':')
  }
  kind.addEventListener('change', () => {
    where.value = chosen().key ? 'env' : 'none'
    key.value = chosen().key
    draw()
  })
  draw()
  return new Promise((resolve) => {
    dialog.addEventListener('close', () => resolve(saved), { once: true })
    for (const one of [close, cancel]) one.addEventListener('click', () => dialog.close())
    show(dialog, kind)
  })
}

/** The result of a test: each step, and the time. @param {ModelTest} test */
export function testResult({ ok, model, ms: took, steps }) {
  const lines = steps.map((step) =>
    h(
      'li',
      null,
      h('strong', null, `${step.name}: ${step.ok === null ? 'not tried' : step.ok ? 'works' : 'failed'}`),
      step.ok === null ? null : ` (${ms(step.ms)}) ${step.detail}`,
    ),
  )
  const head = ok ? `${model} works: a tool call took ${ms(took)}.` : 'The test failed.'
  return banner([h('p', null, head), h('ul', { class: 'test-steps small' }, lines)], ok ? 'ok' : 'bad')
}
