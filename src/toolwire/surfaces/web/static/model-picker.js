// The control that chooses a model: a button that opens a list with a search field. The keys are the arrow
// keys, Page Up, Page Down, Home, End, Enter and Escape.

/** @import { Model } from '../types' */

import { clear, h, icon, strategyBadge, text } from './dom.js'

/** How a model calls tools, by the name of the strategy. */
export const ABOUT = new Map([
  ['native', 'has its own tool calling'],
  ['parked', 'an agent that waits for the results of its calls'],
  ['emulated', 'writes calls as text, which Toolwire reads'],
  ['constrained', 'writes calls as text; its decoder permits only valid calls'],
  ['none', 'cannot call tools'],
])
const STORED = 'toolwire-model'

let count = 0

/** A model's name for people. @param {Model} model */
export function label(model) {
  if (!model.title) return model.id
  return model.trial ? `${model.title}, ${model.use}` : model.title
}

/** @param {Model} model */
function about(model) {
  if (model.no_tools) return 'gets no tools for your notes'
  if (model.may_use_tools || model.tools === 'none') return ABOUT.get(model.tools) ?? ''
  return 'is not allowed to use tools in the chat'
}

export class ModelPicker {
  /** `onpick` is called when the person chooses another model. @param {(id: string) => unknown} onpick */
  constructor(onpick) {
    count += 1
    const id = `models-${count}`
    this.onpick = onpick
    /** @type {Model[]} */
    this.models = []
    this.value = ''
    /** @type {string | undefined} */
    this.active = undefined
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
    this.node = h('div', { class: 'picker' }, this.button, this.panel)
    this.node.addEventListener('focusout', (event) => this.leave(event.relatedTarget))
    document.addEventListener('pointerdown', this.outside)
    this.set([], '')
  }

  get opened() {
    return !this.panel.hidden
  }

  get model() {
    return this.models.find((one) => one.id === this.value)
  }

  /** @param {Model[]} models @param {string} value */
  set(models, value) {
    this.models = models
    this.value = value
    text(
      this.name,
      (this.model ? label(this.model) : value) || (models.length ? 'Choose a model' : 'No model'),
    )
    const missing = value ? h('span', { class: 'badge bad' }, 'not available') : null
    clear(this.badge, this.model ? strategyBadge(this.model.tools) : missing)
    if (this.opened) this.draw()
  }

  open() {
    this.panel.hidden = false
    this.button.setAttribute('aria-expanded', 'true')
    this.input.value = ''
    this.active = this.value
    this.draw()
    this.input.focus()
    this.showActive()
  }

  /** @param {boolean} focusButton */
  close(focusButton) {
    this.panel.hidden = true
    this.button.setAttribute('aria-expanded', 'false')
    if (focusButton) this.button.focus()
  }

  /** The models that match the search. */
  get shown() {
    const words = this.input.value.toLowerCase().split(/\s+/).filter(Boolean)
    return this.models.filter((one) => {
      const searched = `${one.id} ${one.title} ${one.backend} ${one.tools}`.toLowerCase()
      return words.every((word) => searched.includes(word))
    })
  }

  draw() {
    const { shown } = this
    if (!shown.some((one) => one.id === this.active)) this.active = shown[0]?.id
    if (!shown.length) this.input.removeAttribute('aria-activedescendant')
    const none = h(
      'li',
      { class: 'picker-none muted', role: 'option', 'aria-disabled': 'true', 'aria-selected': 'false' },
      this.models.length ? 'No model matches.' : 'There are no models. Add one in Settings.',
    )
    clear(this.list, shown.length ? shown.map((one, index) => this.option(one, index)) : none)
  }

  /** @param {Model} model @param {number} index */
  option(model, index) {
    const chosen = model.id === this.value
    const active = model.id === this.active
    const id = `${this.list.id}-${index}`
    if (active) this.input.setAttribute('aria-activedescendant', id)
    return h(
      'li',
      {
        id,
        role: 'option',
        class: 'picker-option',
        'aria-selected': chosen,
        dataset: { id: model.id, active: active ? 'yes' : null },
        onpointermove: () => this.hover(model.id),
        onclick: () => this.pick(model.id),
      },
      h('span', { class: 'picker-check' }, chosen ? icon('check', 15) : null),
      h(
        'span',
        { class: 'grow' },
        h(
          'span',
          { class: 'picker-name' },
          h('span', { class: 'picker-id' }, label(model)),
          strategyBadge(model.tools),
        ),
        h(
          'span',
          { class: 'picker-about' },
          [...new Set([model.title ? model.id : model.backend, model.backend, about(model)])].join(' · '),
        ),
      ),
    )
  }

  showActive() {
    this.list.querySelector('[data-active]')?.scrollIntoView({ block: 'nearest' })
  }

  /** @param {string} id */
  hover(id) {
    if (this.active === id) return
    this.active = id
    this.draw()
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    const { shown } = this
    const at = shown.findIndex((one) => one.id === this.active)
    const last = shown.length - 1
    /** @type {{ [key: string]: number }} */
    const moves = { ArrowDown: at + 1, ArrowUp: at - 1, PageDown: at + 8, PageUp: at - 8 }
    if (!this.input.value) Object.assign(moves, { Home: 0, End: last }) // else they move in the search field
    if (event.key === 'Escape') {
      event.preventDefault()
      event.stopPropagation()
      this.close(true)
    } else if (event.key === 'Enter' && !event.isComposing) {
      event.preventDefault()
      if (this.active !== undefined) this.pick(this.active)
    } else if (event.key in moves && shown.length) {
      event.preventDefault()
      this.active = shown[Math.max(0, Math.min(last, moves[event.key]))].id
      this.draw()
      this.showActive()
    }
  }

  /** @param {string} id */
  pick(id) {
    this.close(true)
    if (id === this.value) return
    this.set(this.models, id)
    this.onpick(id)
  }

  /** @param {EventTarget | null} target */
  leave(target) {
    if (this.opened && !(target instanceof Node && this.node.contains(target))) this.close(false)
  }

  /** @param {PointerEvent} event */
  outside = (event) => this.leave(event.target)

  end() {
    document.removeEventListener('pointerdown', this.outside)
  }
}

/**
 * The model for a new chat: the model that was chosen last, or else the first model that may use tools. A
 * model for trials is preferred only if there is no other model.
 *
 * @param {Model[]} models
 */
export function preferred(models) {
  let last = ''
  try {
    last = localStorage.getItem(STORED) ?? ''
  } catch {
    // Without storage there is no last choice.
  }
  const real = models.filter((one) => !one.trial)
  const choice = real.length ? real : models
  const model = choice.find((one) => one.id === last) ?? choice.find((one) => one.may_use_tools) ?? choice[0]
  return model?.id ?? ''
}

/** Stores the model for the next new chat. @param {string} model */
export function remember(model) {
  try {
    localStorage.setItem(STORED, model)
  } catch {
    // Without storage the choice applies to this tab.
  }
}
