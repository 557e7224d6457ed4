// The text of an empty chat: what the chat can do, and what is missing before a model can use the vault's
// tools.

/** @import { Model, Session } from '../types' */

import { banner, h, icon, visible } from './dom.js'
import { label } from './model-picker.js'

/** Suggested messages. The person completes those that end with a space. */
const IDEAS = [
  'What do my notes say about ',
  'Which of my notes have open tasks?',
  'Which tags do I use most?',
]
/** Icon, title, text. */
const POINTS = [
  [
    'shield',
    'You approve the calls',
    'You see the arguments, the files and the changes. You can edit the arguments, and let Toolwire ' +
      'remember an approval. For MCP servers, you can also write rules that allow calls.',
  ],
  [
    'wire',
    'Nothing is hidden',
    'The Wire page shows each request, the model’s output and the response, byte by byte.',
  ],
  [
    'plug',
    'Works with your own clients',
    'The Connect page shows how to use these models from Obsidian, editors and SDKs.',
  ],
]

/**
 * `suggest` puts a text into the message field.
 *
 * @param {Session} session
 * @param {Model | undefined} model
 * @param {(message: string) => void} suggest
 * @param {HTMLElement} offer the offer of a better model
 */
export function welcome(session, model, suggest, offer) {
  const ready = session.tool_calling && session.vault.open && !model?.no_tools
  const about = ready
    ? [
        'Ask about your vault ',
        h('strong', null, visible(session.vault.name)),
        '. The model can ask to search, read or change notes. Each of these calls needs your approval.',
      ]
    : 'Chat with any model of this server. If you enable tools in the chat and choose your vault (a folder ' +
      'of notes), a model can also ask to search, read or change these notes. Each call needs your approval.'
  const ideas = IDEAS.map((idea) => {
    const props = { type: 'button', class: 'button', onclick: () => suggest(idea) }
    return h('li', null, h('button', props, idea.endsWith(' ') ? `${idea}…` : idea))
  })
  const points = POINTS.map(([picture, title, words]) =>
    h(
      'li',
      null,
      icon(picture),
      h('div', null, h('strong', null, title), h('span', { class: 'muted' }, words)),
    ),
  )
  return h(
    'div',
    { class: 'welcome' },
    h('img', { src: '/ui/static/favicon.svg', alt: '', width: '44', height: '44' }),
    h('h2', null, 'What would you like to know?'),
    h('p', { class: 'muted' }, about),
    missing(session, model),
    offer,
    ready ? h('ul', { class: 'welcome-ideas' }, ideas) : null,
    tour(),
    h('ul', { class: 'welcome-points' }, points),
  )
}

function tour() {
  return h(
    'p',
    { class: 'welcome-tour' },
    h('a', { class: 'button', href: '/ui/tour' }, icon('play', 15), 'Take the tour'),
    h('span', { class: 'muted' }, 'Two minutes with a sample vault and a scripted model. No account needed.'),
  )
}

/** @param {Session} session @param {Model | undefined} model */
function missing(session, model) {
  const settings = h('a', { class: 'button small', href: '/ui/settings' }, 'Open settings')
  if (!session.tool_calling)
    return banner('Tools in the chat are off: no model here can look into your notes.', '', null, settings)
  if (!session.vault.open)
    return banner(
      'Tools in the chat are on, but no vault is open. Choose a folder in Settings.',
      'warn',
      null,
      settings,
    )
  if (model?.no_tools) return banner(`${model.title} gets no tools for your notes: ${model.no_tools}.`, '')
  if (model && !model.may_use_tools) {
    const why = model.tools === 'none' ? 'cannot call tools' : 'is not allowed to use tools in the chat'
    return banner(`${label(model)} ${why}.`, '', null, settings)
  }
  return null
}

/** What is shown for an address without a conversation. */
export function missingConversation() {
  return h(
    'div',
    { class: 'empty' },
    icon('chat'),
    h('h2', null, 'This conversation does not exist'),
    h('p', null, 'It may have been deleted.'),
    h('a', { class: 'button', href: '/' }, 'New chat'),
  )
}

/**
 * The line below the message field.
 *
 * @param {Session} session
 * @param {Model | undefined} model
 * @param {boolean} tour
 */
export function hint(session, model, tour) {
  if (tour) return 'A tour with a sample vault. Your own notes are not touched.'
  if (!session.tool_calling) return 'Tools in the chat are off: the model sees only this conversation.'
  if (model?.tools === 'none') return 'This model cannot call tools.'
  if (model?.no_tools) return `This model gets no tools for your notes: ${model.no_tools}.`
  if (model && !model.may_use_tools)
    return 'This model is not allowed to use tools in the chat. You can change that in Settings.'
  return 'Enter sends, Shift+Enter adds a line.'
}
