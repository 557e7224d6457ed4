// What stands where nothing was said yet: what this is, and what is missing for it to work.

import { banner, h, icon, visible } from './dom.js'

const IDEAS = [
  'What do my notes say about ',
  'Which of my notes have open tasks?',
  'Which tags do I use most?',
]

/** `suggest(text)` puts a text into the composer. */
export function welcome(session, model, suggest) {
  const ready = session.tool_calling && session.vault.open
  const about = ready
    ? [
        `Ask about your vault `,
        h('strong', null, visible(session.vault.name)),
        '. The model may ask to search, read or change notes; nothing happens before you have seen it and said yes.',
      ]
    : [
        'Talk to any model that this gateway serves. With tool calling switched on it may also ask to look into your vault, and you decide about every single call.',
      ]
  return h(
    'div',
    { class: 'welcome' },
    h('img', { src: '/ui/static/favicon.svg', alt: '', width: '44', height: '44' }),
    h('h2', null, 'What would you like to know?'),
    h('p', { class: 'muted' }, about),
    missing(session, model),
    ready
      ? h(
          'ul',
          { class: 'welcome-ideas' },
          IDEAS.map((words) =>
            h(
              'li',
              null,
              h(
                'button',
                { type: 'button', class: 'button', onclick: () => suggest(words) },
                words.endsWith(' ') ? `${words}…` : words,
              ),
            ),
          ),
        )
      : null,
    h(
      'ul',
      { class: 'welcome-points' },
      [
        [
          'shield',
          'Every call asks first',
          'You see the arguments, the files and the changes, and may edit them.',
        ],
        [
          'wire',
          'Nothing is hidden',
          'The wire page shows each turn, from the model to the client, byte by byte.',
        ],
        [
          'plug',
          'Your own clients too',
          'Connect shows how to use these models from Obsidian, editors and SDKs.',
        ],
      ].map(([drawn, head, words]) =>
        h(
          'li',
          null,
          icon(drawn),
          h('div', null, h('strong', null, head), h('span', { class: 'muted' }, words)),
        ),
      ),
    ),
  )
}

function missing(session, model) {
  if (!session.tool_calling)
    return banner(
      'Tool calling is off, so no model can look into your vault. You can switch it on at any time.',
      '',
      null,
      h('a', { class: 'button small', href: '/ui/settings' }, 'Open settings'),
    )
  if (!session.vault.open)
    return banner(
      'Tool calling is on, but no vault is open. Name one in the configuration file (vault.root).',
      'warn',
      null,
      h('a', { class: 'button small', href: '/ui/settings' }, 'Open settings'),
    )
  if (model && !model.may_use_tools)
    return banner(
      `${model.id} ${model.tools === 'none' ? 'can not call tools' : 'is not among the models that may use tools'}.`,
      '',
      null,
      h('a', { class: 'button small', href: '/ui/settings' }, 'Open settings'),
    )
  return null
}
