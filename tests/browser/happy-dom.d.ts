// happy-dom's own types need Node's, which would also apply to the browser modules.

export class Window {
  constructor(options: { url: string; settings: { disableJavaScriptEvaluation: boolean } })
}
