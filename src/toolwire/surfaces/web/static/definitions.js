// Definitions of MCP servers' tools that wait for a person's decision, because they are new or have changed.
//
// Law: in a row, the person can only keep a tool withheld. The person can agree only in the dialog, which
// shows the whole difference. Escape and the close button decide nothing.

/** @import { Definition, InboxContext } from '../types' */

import * as api from './api.js'
import { frame, show } from './dialog.js'
import { drawDiff } from './diff.js'
import { banner, clear, h, icon, visible } from './dom.js'

const INERT_MS = 500

/** @param {Definition} one */
const nameOf = (one) => `${visible(one.server)}: ${visible(one.tool)}`

/** Why a tool is withheld. @param {Definition} one */
const whatOf = (one) =>
  one.why === 'new'
    ? 'This tool is new: the server did not offer it when you first used the server.'
    : 'The server has changed the definition of this tool, or the instructions that it gives to models.'

/** @param {Definition} one @param {InboxContext} context @param {() => Promise<void>} refresh */
export function definitionEntry(one, context, refresh) {
  const name = nameOf(one)
  async function look() {
    await review(one, context)
    await refresh().catch(context.showError)
  }
  async function keep() {
    await decide(one, false).then(context.clearError, context.showError)
    await refresh().catch(context.showError)
  }
  /** @param {string} label @param {string} kind @param {() => unknown} onclick */
  const button = (label, kind, onclick) =>
    h(
      'button',
      { type: 'button', class: `button ${kind}`, 'aria-label': `${label}: ${name}`, onclick },
      label,
    )
  return h(
    'li',
    { class: 'case', 'aria-label': `${name}, ${one.why} definition` },
    h(
      'div',
      { class: 'case-main' },
      h(
        'div',
        { class: 'row' },
        icon('plug'),
        h('h2', { class: 'case-title' }, name),
        h('span', { class: 'badge warn' }, one.why === 'new' ? 'new tool' : 'changed definition'),
      ),
      h('p', { class: 'case-touches' }, `${whatOf(one)} Models do not see this tool until you agree.`),
    ),
    h('div', { class: 'case-actions' }, button('Keep hidden', '', keep), button('Review', 'primary', look)),
  )
}

/** @param {Definition} one @param {boolean} agreed */
const decide = ({ source, tool, pin }, agreed) => api.post('/definitions', { source, tool, pin, agreed })

/**
 * Shows a definition in a dialog. When the dialog is closed, resolves to whether the person decided.
 *
 * @param {Definition} one
 * @param {Pick<InboxContext, 'announce'>} context
 * @returns {Promise<boolean>}
 */
export function review(one, context) {
  const { dialog, heading, close, body, foot } = frame(nameOf(one), {
    wide: true,
    closeLabel: 'Decide later',
  })
  const trouble = h('div', { class: 'trouble' })
  const note = h('p', null, 'A tool’s description is text for the model, and can contain instructions. ')
  note.append('Agree only if you trust the new text.')
  body.append(
    h('p', { class: 'approval-lead' }, whatOf(one)),
    trouble,
    h('h3', { class: 'label' }, one.why === 'new' ? 'The definition' : 'What has changed'),
    drawDiff(one.diff),
    h('div', { class: 'privacy' }, icon('shield'), note),
  )
  body.tabIndex = 0
  body.setAttribute('role', 'group')
  body.setAttribute('aria-label', 'Definition')
  const opened = performance.now()
  let decided = false
  /** @param {string} label @param {string} kind @param {boolean} agreed @param {string} said */
  const button = (label, kind, agreed, said) => {
    const made = h('button', { type: 'button', class: `button ${kind}`, onclick: press }, label)
    async function press() {
      if (performance.now() - opened < INERT_MS) return // a click that was meant for something else
      clear(trouble)
      try {
        await decide(one, agreed)
        context.announce(`${nameOf(one)}: ${said}`)
        decided = true
        dialog.close()
      } catch (error) {
        clear(trouble, banner(api.messageOf(error), 'bad'))
      }
    }
    return made
  }
  foot.append(
    h('button', { type: 'button', class: 'button quiet', onclick: () => dialog.close() }, 'Decide later'),
    button('Keep hidden', '', false, 'models still do not see this tool.'),
    button('Agree', 'primary', true, 'models can now see this tool.'),
  )
  close.addEventListener('click', () => dialog.close())
  return new Promise((resolve) => {
    dialog.addEventListener('close', () => resolve(decided), { once: true })
    show(dialog, heading)
  })
}
