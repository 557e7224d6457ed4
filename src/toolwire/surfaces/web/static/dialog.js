// Small dialogs that ask for yes or no, or for one line of text. They are native dialogs, so the focus stays
// inside, and returns afterwards. If the person closes such a dialog, the answer is no.

/** @import { Child } from '../types' */

import { focus, h, icon } from './dom.js'

let count = 0

/**
 * An empty dialog with a title and a close button. The caller fills `body` and `foot`.
 *
 * @param {string} title
 * @param {{ wide?: boolean, closeLabel?: string }} [options]
 */
export function frame(title, { wide = false, closeLabel = 'Close' } = {}) {
  count += 1
  const id = `dialog-${count}`
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

/**
 * Shows a dialog. When it is closed, the focus returns to where it was.
 *
 * @param {HTMLDialogElement} dialog
 * @param {HTMLElement} first gets the focus
 */
export function show(dialog, first) {
  const before = document.activeElement
  document.body.append(dialog)
  dialog.addEventListener(
    'close',
    () => {
      dialog.remove()
      focus(before)
    },
    { once: true },
  )
  dialog.showModal()
  first.focus()
}

/**
 * Asks whether to do something, and resolves to the answer. A click beside the dialog means no. The focus
 * goes to the input `first`; without `first`, to the button “Cancel”.
 *
 * @param {object} question
 * @param {string} question.title
 * @param {Child} question.content
 * @param {string} question.action
 * @param {boolean} [question.danger]
 * @param {HTMLInputElement} [question.first]
 * @returns {Promise<boolean>}
 */
export function confirm({ title, content, action, danger = false, first }) {
  const { dialog, close, body, foot } = frame(title)
  const no = h('button', { type: 'button', class: 'button' }, 'Cancel')
  const yes = h('button', { type: 'button', class: danger ? 'button danger' : 'button primary' }, action)
  body.append(h('div', { class: 'stack loose' }, content))
  foot.append(no, yes)
  dialog.addEventListener('click', (event) => {
    if (event.target === dialog) dialog.close()
  })
  if (first) submitOnEnter(first, yes)
  return answer(dialog, [close, no], yes, first ?? no)
}

/**
 * Asks for a line of text. Resolves to null if the person cancels or enters nothing.
 *
 * @param {{ title: string, label: string, value?: string, action?: string }} question
 * @returns {Promise<string | null>}
 */
export async function prompt({ title, label, value = '', action = 'Save' }) {
  const { dialog, heading, close, body, foot } = frame(title)
  const input = h('input', {
    class: 'input',
    type: 'text',
    value,
    maxlength: '200',
    id: `${heading.id}-input`,
  })
  body.append(h('div', { class: 'field' }, h('label', { class: 'label', for: input.id }, label), input))
  const no = h('button', { type: 'button', class: 'button' }, 'Cancel')
  const yes = h('button', { type: 'button', class: 'button primary' }, action)
  foot.append(no, yes)
  submitOnEnter(input, yes)
  const answered = answer(dialog, [close, no], yes, input)
  input.select()
  return (await answered) ? input.value.trim() || null : null
}

/** @param {HTMLInputElement} input @param {HTMLButtonElement} button */
function submitOnEnter(input, button) {
  input.addEventListener('keydown', (event) => {
    if (event.key !== 'Enter' || event.isComposing) return
    event.preventDefault() // otherwise the same key also presses the button that gets the focus back
    button.click()
  })
}

/**
 * @param {HTMLDialogElement} dialog
 * @param {HTMLButtonElement[]} noes
 * @param {HTMLButtonElement} yes
 * @param {HTMLElement} first
 * @returns {Promise<boolean>}
 */
function answer(dialog, noes, yes, first) {
  return new Promise((resolve) => {
    let agreed = false
    dialog.addEventListener('close', () => resolve(agreed), { once: true })
    for (const no of noes) no.addEventListener('click', () => dialog.close())
    yes.addEventListener('click', () => {
      agreed = true
      dialog.close()
    })
    show(dialog, first)
  })
}
