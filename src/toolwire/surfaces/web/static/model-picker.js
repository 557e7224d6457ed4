// Choosing a model: a button that opens a list with a search field. Arrow keys, Home, End, Enter, Escape.

import { clear, h, icon, strategyBadge, text } from './dom.js'

const WORDS = {
  native: 'calls tools by itself',
  parked: 'an agent whose calls wait for you',
  emulated: 'is taught to write calls, which are read out of its text',
  constrained: 'writes calls that a grammar holds to their schema',
  none: 'can not call tools',
}

let count = 0

export class ModelPicker {
  /** `onpick(id)` when the person chose another. */
  constructor(onpick) {
    const id = `models-${(count += 1)}`
    this.onpick = onpick
    this.models = []
    this.value = ''
    this.name = h('span', { class: 'ellipsis' })
    this.badge = h('span')
    this.button = h(
      'button',
      {
        type: 'button',
        class: 'button quiet picker-button',
        'aria-haspopup': 'listbox',
        'aria-expanded': 'false',
        onclick: () => (this.opened ? this.close(true) : this.open()),
      },
      h('span', { class: 'visually-hidden' }, 'Model: '),
      this.name,
      ' ',
      this.badge,
      icon('chevron', 14),
    )
    this.input = h('input', {
      class: 'input',
      type: 'text',
      role: 'combobox',
      'aria-label': 'Search models',
      'aria-controls': id,
      'aria-expanded': 'true',
      'aria-autocomplete': 'list',
      autocomplete: 'off',
      spellcheck: 'false',
      placeholder: 'Search models',
      oninput: () => this.draw(),
      onkeydown: (event) => this.key(event),
    })
    this.list = h('ul', {
      class: 'picker-list scroll',
      role: 'listbox',
      id,
      'aria-label': 'Models',
      tabindex: '-1',
    })
    this.panel = h('div', { class: 'picker-panel', hidden: true }, this.input, this.list)
    this.node = h(
      'div',
      {
        class: 'picker',
        onfocusout: (event) => {
          if (this.opened && !this.node.contains(event.relatedTarget)) this.close(false)
        },
      },
      this.button,
      this.panel,
    )
    document.addEventListener('pointerdown', this.outside)
    this.set([], '')
  }

  get opened() {
    return !this.panel.hidden
  }

  get model() {
    return this.models.find((one) => one.id === this.value)
  }

  set(models, value) {
    this.models = models
    this.value = value
    text(this.name, value || (models.length ? 'Choose a model' : 'No model'))
    clear(
      this.badge,
      this.model ? strategyBadge(this.model.tools) : value ? h('span', { class: 'badge bad' }, 'gone') : null,
    )
    if (this.opened) this.draw()
  }

  open() {
    this.panel.hidden = false
    this.button.setAttribute('aria-expanded', 'true')
    this.input.value = ''
    this.active = this.value
    this.draw()
    this.input.focus()
    this.list.querySelector('[data-active]')?.scrollIntoView({ block: 'nearest' })
  }

  close(back) {
    this.panel.hidden = true
    this.button.setAttribute('aria-expanded', 'false')
    if (back) this.button.focus()
  }

  get shown() {
    const words = this.input.value.toLowerCase().split(/\s+/).filter(Boolean)
    return this.models.filter((one) =>
      words.every((word) => `${one.id} ${one.backend} ${one.tools}`.toLowerCase().includes(word)),
    )
  }

  draw() {
    const { shown } = this
    if (!shown.some((one) => one.id === this.active)) this.active = shown[0]?.id
    const options = shown.map((one, place) => {
      const chosen = one.id === this.value
      const id = `${this.list.id}-${place}`
      if (one.id === this.active) this.input.setAttribute('aria-activedescendant', id)
      return h(
        'li',
        {
          id,
          role: 'option',
          class: 'picker-option',
          'aria-selected': chosen,
          dataset: { id: one.id, active: one.id === this.active ? 'yes' : null },
          onpointermove: () => this.hover(one.id),
          onclick: () => this.pick(one.id),
        },
        h('span', { class: 'picker-check' }, chosen ? icon('check', 15) : null),
        h(
          'span',
          { class: 'grow' },
          h(
            'span',
            { class: 'picker-name' },
            h('span', { class: 'picker-id' }, one.id),
            strategyBadge(one.tools),
          ),
          h(
            'span',
            { class: 'picker-about' },
            `${one.backend} · ${one.may_use_tools ? (WORDS[one.tools] ?? '') : one.tools === 'none' ? WORDS.none : 'may not use tools here'}`,
          ),
        ),
      )
    })
    if (!options.length) this.input.removeAttribute('aria-activedescendant')
    clear(
      this.list,
      options.length
        ? options
        : h(
            'li',
            { class: 'picker-none muted', role: 'option', 'aria-disabled': 'true', 'aria-selected': 'false' },
            this.models.length ? 'No model fits.' : 'No backend offers a model. See the configuration file.',
          ),
    )
  }

  hover(id) {
    if (this.active === id) return
    this.active = id
    this.draw()
  }

  key(event) {
    const { shown } = this
    const at = shown.findIndex((one) => one.id === this.active)
    const to = {
      ArrowDown: at + 1,
      ArrowUp: at - 1,
      Home: 0,
      End: shown.length - 1,
      PageDown: at + 8,
      PageUp: at - 8,
    }[event.key]
    if (event.key === 'Escape') {
      event.preventDefault()
      event.stopPropagation()
      this.close(true)
    } else if (event.key === 'Enter' && !event.isComposing) {
      event.preventDefault()
      if (this.active !== undefined) this.pick(this.active)
    } else if (
      to !== undefined &&
      shown.length &&
      !((event.key === 'Home' || event.key === 'End') && this.input.value)
    ) {
      event.preventDefault()
      this.active = shown[Math.max(0, Math.min(shown.length - 1, to))].id
      this.draw()
      this.list.querySelector('[data-active]')?.scrollIntoView({ block: 'nearest' })
    }
  }

  pick(id) {
    this.close(true)
    if (id === this.value) return
    this.set(this.models, id)
    this.onpick(id)
  }

  outside = (event) => {
    if (this.opened && !this.node.contains(event.target)) this.close(false)
  }

  end() {
    document.removeEventListener('pointerdown', this.outside)
  }
}

/** The model that was chosen last, or the first that may use tools. */
export function preferred(models) {
  let last = ''
  try {
    last = localStorage.getItem('toolwire-model') ?? ''
  } catch {
    // no storage
  }
  return (
    (models.find((one) => one.id === last) ?? models.find((one) => one.may_use_tools) ?? models[0])?.id ?? ''
  )
}

/** The model to begin with next time. */
export function remember(model) {
  try {
    localStorage.setItem('toolwire-model', model)
  } catch {
    // chosen for this tab
  }
}
