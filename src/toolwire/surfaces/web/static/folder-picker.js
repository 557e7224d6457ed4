// The dialog that chooses the vault's folder: a path with suggestions from the server's machine.

import * as api from './api.js'
import { frame, show } from './dialog.js'
import { banner, clear, h, icon, text } from './dom.js'

const WAIT_MS = 150

/**
 * Opens the dialog. Resolves to true if a folder was saved.
 *
 * @param {string} root the folder now
 * @returns {Promise<boolean>}
 */
export function folderPicker(root) {
  const { dialog, heading, close, body, foot } = frame('Choose the vault’s folder')
  const hint = h(
    'p',
    { class: 'hint', id: `${heading.id}-hint` },
    'A folder on the machine that runs the server.',
  )
  const field = h('input', {
    class: 'input mono',
    type: 'text',
    id: `${heading.id}-path`,
    value: root,
    maxlength: '1000',
    spellcheck: 'false',
    autocapitalize: 'off',
    autocomplete: 'off',
    'aria-describedby': hint.id,
    oninput: later,
  })
  const place = h('p', { class: 'small muted', role: 'status' })
  const list = h('ul', { class: 'folder-list', 'aria-label': 'Folders' })
  const trouble = h('div', { 'aria-live': 'polite' })
  const cancel = h('button', { type: 'button', class: 'button' }, 'Cancel')
  const save = h('button', { type: 'submit', class: 'button primary' }, 'Use this folder')
  const form = h(
    'form',
    { class: 'stack', id: `${heading.id}-form`, onsubmit: submit },
    h('div', { class: 'field' }, h('label', { class: 'label', for: field.id }, 'Folder'), field, hint),
    place,
    list,
    trouble,
  )
  save.setAttribute('form', form.id)
  body.append(form)
  foot.append(cancel, save)
  let timer = 0
  let asked = 0
  let saved = false

  function later() {
    clearTimeout(timer)
    timer = setTimeout(suggest, WAIT_MS)
  }

  async function suggest() {
    asked += 1
    const current = asked
    try {
      const found = await api.get(api.query('/settings/folders', { path: field.value }))
      if (current !== asked) return
      text(place, found.folders.length ? `In ${found.folder}` : `No matching folders in ${found.folder}.`)
      clear(
        list,
        found.parent ? item('..', 'Parent folder', found.parent) : null,
        found.folders.map((one) => item(one.name, one.name, one.path)),
        found.more
          ? h('li', { class: 'small muted' }, 'There are more. Type the beginning of a name.')
          : null,
      )
    } catch (error) {
      if (current !== asked) return
      text(place, api.messageOf(error))
      clear(list)
    }
  }

  /** @param {string} label @param {string} name @param {string} path */
  function item(label, name, path) {
    const enter = () => {
      field.value = path === '/' ? path : `${path}/`
      field.focus()
      suggest()
    }
    const props = { type: 'button', class: 'button quiet small', 'aria-label': name, onclick: enter }
    return h('li', null, h('button', props, icon('folder', 15), h('span', { class: 'mono' }, label)))
  }

  /** @param {SubmitEvent} event */
  async function submit(event) {
    event.preventDefault()
    save.disabled = true
    try {
      await api.put('/settings/vault', { root: field.value })
      saved = true
      dialog.close()
    } catch (error) {
      clear(trouble, banner(api.messageOf(error), 'bad'))
    }
    save.disabled = false
  }

  return new Promise((resolve) => {
    dialog.addEventListener(
      'close',
      () => {
        clearTimeout(timer)
        resolve(saved)
      },
      { once: true },
    )
    for (const one of [close, cancel]) one.addEventListener('click', () => dialog.close())
    show(dialog, field)
    suggest()
  })
}
