// A dialog that shows what would be done before it is done. Closing it, by Escape or by a click beside it, is a no.

import { h } from './dom.js'
import { frame, show } from './dialog.js'

/** Asks. `content` are nodes or texts; gives true when the person said yes. The focus goes to `first`, or else to the button that says no. */
export function confirmed({ title, content, yes, danger = false, first = null }) {
  const { dialog, close, body, foot } = frame(title)
  const no = h('button', { type: 'button', class: 'button' }, 'Cancel')
  const agree = h('button', { type: 'button', class: danger ? 'button danger' : 'button primary' }, yes)
  body.append(h('div', { class: 'stack loose' }, content))
  foot.append(no, agree)
  return new Promise((resolve) => {
    let answer = false
    const agreed = () => {
      answer = true
      dialog.close()
    }
    for (const button of [close, no]) button.addEventListener('click', () => dialog.close())
    agree.addEventListener('click', agreed)
    first?.addEventListener('keydown', (event) => {
      if (event.key !== 'Enter' || event.isComposing) return
      event.preventDefault() // the same key must not press the button that gets the focus back
      agreed()
    })
    dialog.addEventListener('click', (event) => {
      if (event.target === dialog) dialog.close()
    })
    dialog.addEventListener('close', () => resolve(answer), { once: true })
    show(dialog, first ?? no)
  })
}
