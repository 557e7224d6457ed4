// Small dialogs: a yes or no, and a line of text. Native ones, so that focus stays inside and returns.

import { h, icon } from './dom.js'

let count = 0

/** An empty dialog with a title and a close button. `body` and `foot` are to be filled. */
export function frame(title, { wide = false, closeLabel = 'Close' } = {}) {
  const id = `dialog-${(count += 1)}`
  const heading = h('h2', { id, tabindex: '-1' }, title)
  const close = h(
    'button',
    { type: 'button', class: 'button quiet square small', 'aria-label': closeLabel },
    icon('close'),
  )
  const body = h('div', { class: 'dialog-body' })
  const foot = h('div', { class: 'dialog-foot' })
  const dialog = h(
    'dialog',
    { class: wide ? 'dialog wide' : 'dialog', 'aria-labelledby': id },
    h('div', { class: 'dialog-head' }, heading, close),
    body,
    foot,
  )
  return { dialog, heading, close, body, foot }
}

/** Shows a dialog, and gives the focus back when it is closed. */
export function show(dialog, focus) {
  const before = document.activeElement
  document.body.append(dialog)
  dialog.addEventListener(
    'close',
    () => {
      dialog.remove()
      if (before?.isConnected) before.focus()
    },
    { once: true },
  )
  dialog.showModal()
  focus?.focus()
}

/** Whether the person wants it. */
export function confirm({ title, words, action = 'OK', danger = false }) {
  const { dialog, close, body, foot } = frame(title)
  body.append(h('p', null, words))
  const no = h('button', { type: 'button', class: 'button' }, 'Cancel')
  const yes = h('button', { type: 'button', class: danger ? 'button danger' : 'button primary' }, action)
  foot.append(no, yes)
  return answered(dialog, [close, no], yes, () => true, no)
}

/** A line of text, or null. */
export function prompt({ title, label, value = '', action = 'Save' }) {
  const { dialog, close, body, foot } = frame(title)
  const input = h('input', {
    class: 'input',
    type: 'text',
    value,
    maxlength: '200',
    id: `${dialog.getAttribute('aria-labelledby')}-input`,
  })
  body.append(h('div', { class: 'field' }, h('label', { class: 'label', for: input.id }, label), input))
  const no = h('button', { type: 'button', class: 'button' }, 'Cancel')
  const yes = h('button', { type: 'button', class: 'button primary' }, action)
  foot.append(no, yes)
  input.addEventListener('keydown', (event) => {
    if (event.key !== 'Enter' || event.isComposing) return
    event.preventDefault() // else the key goes on to whatever has the focus then
    yes.click()
  })
  const out = answered(dialog, [close, no], yes, () => input.value.trim() || null, input)
  input.select()
  return out.then((given) => given || null)
}

function answered(dialog, noes, yes, value, focus) {
  return new Promise((resolve) => {
    let answer = false
    dialog.addEventListener('close', () => resolve(answer), { once: true })
    for (const no of noes) no.addEventListener('click', () => dialog.close())
    yes.addEventListener('click', () => {
      answer = value()
      dialog.close()
    })
    show(dialog, focus)
  })
}
