// The types of the browser code in static/: what the pages' API returns, and what modules pass to each other.
// For the type checker only. Browsers never load this file.

import type { Live } from './static/live.js'

export type Json = null | boolean | number | string | Json[] | { [name: string]: Json }
export type JsonObject = { [name: string]: Json }

// --- the page ----------------------------------------------------------------------------------------------

export type Child = Node | string | number | boolean | null | undefined | readonly Child[]
type Attribute = string | number | boolean | null | undefined
type Handlers = {
  [Name in keyof HTMLElementEventMap as `on${Name}`]?: ((event: HTMLElementEventMap[Name]) => unknown) | null
}
type AttributeName =
  | 'alt'
  | 'autocapitalize'
  | 'autocomplete'
  | 'checked'
  | 'class'
  | 'datetime'
  | 'disabled'
  | 'download'
  | 'for'
  | 'height'
  | 'hidden'
  | 'href'
  | 'id'
  | 'list'
  | 'max'
  | 'maxlength'
  | 'min'
  | 'name'
  | 'placeholder'
  | 'readOnly'
  | 'rel'
  | 'required'
  | 'role'
  | 'rows'
  | 'scope'
  | 'selected'
  | 'spellcheck'
  | 'src'
  | 'start'
  | 'step'
  | 'tabindex'
  | 'target'
  | 'title'
  | 'type'
  | 'value'
  | 'width'

export type Props = Handlers & { [Name in AttributeName]?: Attribute } & {
  [Name: `aria-${string}`]: Attribute
} & {
  dataset?: { [name: string]: string | null | undefined }
  /** Custom properties of CSS. */
  vars?: { [name: `--${string}`]: string | number }
}
export type SvgAttributes = { [name: string]: Attribute }

export type TabItem = { id: string; label: Child; domId?: string }
export type TabList = HTMLDivElement & { pick(id: string): void }

/** What every page gets. */
export type Context = {
  session: Session
  live: Live
  id: string | undefined
  navigate(path: string, options?: { replace?: boolean }): Promise<unknown>
  announce(words: string): void
  setTitle(words: string): void
}
/** Closes a page. `go` moves the page from one of its addresses to another without closing it. */
export type ClosePage = (() => void) & { go?(id: string | undefined): Promise<void> }
export type PageModule = {
  title: string
  open(main: HTMLElement, context: Context): Promise<ClosePage>
}
export type OnError = (error: unknown) => void

// --- sessions and settings ---------------------------------------------------------------------------------

export type Session = {
  boot: string
  version: string
  base_url: string
  keys: boolean
  vault: { root: string; name: string; open: boolean }
  tool_calling: boolean
  approving: Approving
}
/** `decides`: whether the session may approve. `entered`: whether the session has the approval code. */
export type Approving = {
  decides: boolean
  code: { set_at: number; set_by: string } | null
  entered: boolean
}
export type Vault = {
  root: string
  exists: boolean
  include: string[]
  exclude: string[]
  enabled_in_file: boolean
  open: boolean
  error: string
  /** Where the folder is set: 'page', a file, an environment variable, or '' for the default. */
  origin: string
}
export type Settings = {
  tool_calling: boolean
  tool_models: string[]
  vault: Vault
  journal: { contents: string; max_mb: number; path: string }
  config: string
  config_path: string
}
/**
 * `title` and `use` are for people. `trial`: whether the model is only for trials. `no_tools`: why the chat
 * offers no tools to the model; '' if it offers tools.
 */
export type Model = {
  id: string
  backend: string
  tools: string
  title: string
  use: string
  trial: boolean
  no_tools: string
  may_use_tools: boolean
}
/** The model that the page offers to download. `lacks`: the command that installs llama.cpp, or ''. */
export type LocalState = {
  model: {
    name: string
    id: string
    title: string
    use: string
    size: number
    memory: number
    licence: string
  }
  offered: boolean
  lacks: string
  locked: string
  download: {
    name: string
    state: 'running' | 'stopped' | 'failed' | 'done'
    phase: string
    done: number
    total: number
    error: string
  } | null
}

/** A choice of the form that adds a model. */
export type ModelKind = {
  id: string
  name: string
  base_url: string
  key: string
  asks: string[]
  lists: boolean
}
/** A model as the form has it. `key` is a reference: env:NAME or file:PATH. */
export type ModelDraft = { id: string; kind: string; model: string; base_url: string; key: string }
export type LastTurn = { at: number; ok: boolean; reason: string; turn: string }
/** A model and where it is set. `draft` only if the page added it. */
export type ModelRow = {
  id: string
  backend: string
  name: string
  origin: string
  last: LastTurn | null
  draft?: ModelDraft
}
export type ModelList = {
  models: ModelRow[]
  kinds: ModelKind[]
  locked: string
  restart: string
  file: string
  problem: string
}
export type ModelHealth = { ok: boolean; reason: string }
export type ModelTest = { ok: boolean; model: string; ms: number; steps: TestStep[] }
export type FolderList = {
  folder: string
  parent: string
  folders: { name: string; path: string }[]
  more: boolean
}

export type ClientStep = { label: string; value?: string; code?: string; language?: string; note?: string }
export type Client = {
  id: string
  name: string
  summary: string
  docs: string
  api: string
  steps: ClientStep[]
}
export type Connect = {
  base_url: string
  models: Pick<Model, 'id' | 'backend' | 'tools'>[]
  model: string
  needs_key: boolean
  clients: Client[]
}
/** `ok` is null for a step that was not tried. */
export type TestStep = { name: string; ok: boolean | null; ms: number; detail: string }
export type ConnectTest = { ok: boolean; model: string; steps: TestStep[] }

// --- approvals ---------------------------------------------------------------------------------------------

export type Touched = {
  key: string
  path: string
  size: number | null
  snippet: string
  missing: boolean
  reason: string
  /** The texts in the snippet that match a search. */
  marked?: string[]
}
export type Preview = {
  touched: Touched[]
  diff: string
  summary: string
  pick: boolean
  problem: string
  /** What an approval does, if there is nothing to pick: "Create note". */
  action: string
  /** What the person should know about the call, each with a label and a text. */
  facts: [string, string][]
  /** The text that the model would see, if an approval shares a result. */
  content: string
}
export type Stage = 'run' | 'share'
export type Scope = 'once' | 'session' | 'folder' | 'tool'
export type Decision = {
  approved: boolean
  reason: string
  arguments: JsonObject | null
  picked: string[] | null
  remember: Scope
  folder: string
}
/** A decision as the pages send it. */
export type DecisionRequest = {
  /** The token of the question as it was shown. */
  token: string
  approved: boolean
  reason?: string
  arguments?: JsonObject
  /** Edited arguments as JSON text, because JavaScript would round long numbers. */
  arguments_json?: string
  /** The rule to save: it allows exactly this call from now on. */
  rule?: string
  seen?: string
  picked?: string[]
  remember?: Scope
  folder?: string
}
export type FieldSchema = {
  type?: string
  description?: string
  enum?: Json[]
  minimum?: number
  maximum?: number
}
export type Schema = { properties?: { [name: string]: FieldSchema } }
export type Approval = {
  id: string
  created_at: number
  expires_at: number
  session: string
  surface: string
  model: string
  /** "vault:/path", "mcp:NAME", or ''. */
  source: string
  pin: string
  tool: string
  stage: Stage
  title: string
  purpose: string
  effect: '' | 'read' | 'write' | 'search' | 'call'
  arguments: JsonObject
  /** The arguments as JSON text, exactly as they would be sent. */
  arguments_json: string
  /** The rule that would allow exactly this call from now on; '' if none could. */
  rule: string
  schema: Schema
  shown: Preview
  digest: string
  problem_note: string
  /** A hash of the question as it is shown. A decision sends it back. */
  token: string
  status: 'pending' | 'approved' | 'denied' | 'expired'
  decided_at: number | null
  decided_by: string | null
  decision: Decision | null
  editable: boolean
  folder: string
  note: string
  /** Where the question comes from: "via MCP". */
  place: string
  /** Why an approval needs the approval code first; '' if it does not. */
  needs_code: string
  /** What the tour says about the call; '' outside of a tour. */
  hint: string
  /** The label of a model that follows a script; '' for others. */
  scripted: string
  /** Whether the decision is made by a link, so that it can only be about this call. */
  once?: boolean
}
/** A definition of an MCP server's tool. Models do not see the tool until a person agrees to it. */
export type Definition = {
  id: string
  source: string
  server: string
  tool: string
  pin: string
  why: 'new' | 'changed'
  diff: string
  /** Whether the person has seen this definition and keeps the tool withheld. */
  kept: boolean
}
export type McpServer = {
  name: string
  address: string
  where: string
  state: 'idle' | 'starting' | 'ready' | 'failed'
  error: string
  tools: string[]
  withheld: number
  /** Tools that cannot be offered, with the reason. */
  unusable: { [tool: string]: string }
  /** Problems of the server's rules. */
  warnings: string[]
  rules: { deny: string[]; ask: string[]; allow: string[] }
  /** Allow rules that were saved on these pages. */
  saved: string[]
  default: string
  share: string
}
export type McpServers = { servers: McpServer[]; lacks: string; locked: string; restart: string }
export type Grant = {
  id: string
  created_at: number
  scope: Scope
  tool: string
  stage: 'run' | 'share'
  target: string
  revoked_at: number | null
  source: string
  pin: string
  model: string
  lasts: 'until_revoked' | 'until_exit' | 'never'
}
export type AuditRow = {
  number: number
  at: number
  event: string
  approval_id: string
  session: string
  surface: string
  model: string
  tool: string
  arguments_sha256: string
  result_sha256: string
  bytes: number
  note: string
}
/** What the tabs of the inbox get besides the page's context. */
export type InboxContext = Context & {
  setPending(count: number): void
  showError: OnError
  clearError(): void
}
export type InboxTab = { node: HTMLElement; refresh(): Promise<void>; close?(): void }

// --- chat --------------------------------------------------------------------------------------------------

export type ConversationRow = {
  id: string
  title: string
  model: string
  updated_at: number
  snippet: string
  running: boolean
  waiting: number
}
export type TextPart = { type: 'text' | 'thought'; text: string }
export type CallPart = {
  type: 'call'
  id: string
  name: string
  title: string
  arguments: string
  state: string
  result: Json
  notice: string
  shared: string[]
  unread: { [path: string]: string }
  /** The arguments that were asked for and those that ran, if the person edited them. */
  edited?: [JsonObject, JsonObject] | null
}
export type Ended = {
  why: string
  words: string
  usage: { output_tokens?: number; completion_tokens?: number }
}
export type UserEntry = { kind: 'user'; at: number; text: string }
export type AnswerEntry = {
  kind: 'answer'
  at: number
  model: string
  parts: (TextPart | CallPart)[]
  ended: Ended | null
  /** The label of a model that follows a script. */
  scripted?: string
}
export type Entry = UserEntry | AnswerEntry
export type Conversation = {
  id: string
  title: string
  model: string
  running: boolean
  seq: number
  entries: Entry[]
  /** Whether it is a tour, with a sample vault and a scripted model. */
  tour: boolean
}
/** A change of a conversation. `prev` is the number of the change before it. */
export type Operation = { conversation: string; prev: number; seq: number } & (
  | { op: 'user'; entry: UserEntry }
  | { op: 'answer'; entry: AnswerEntry }
  | { op: 'cut'; entries: number }
  | { op: 'text' | 'thought'; text: string }
  | { op: 'calls'; parts: CallPart[] }
  | ({ op: 'call' } & Pick<CallPart, 'id'> & Partial<CallPart>)
  | { op: 'titled'; title: string }
  | { op: 'ended'; ended: Ended }
)

// --- the wire inspector ------------------------------------------------------------------------------------

export type RowKind = 'frames' | 'events' | 'wire'
/** Milliseconds since the request, label, text. */
export type Row = [number, string, string]
export type TurnLine = {
  id: string
  at: number
  state: 'running' | 'ended'
  request_id: string
  key: string
  api: string
  model: string
  backend: string
  strategy: string
  kind: string
  stream: boolean
  status: number | null
  finish: string | null
  error: string | null
  cancelled: boolean
  calls: string[]
  call_ids: string[]
  input_tokens: number
  output_tokens: number
  first_byte_ms: number | null
  duration_ms: number | null
  report: string
  dropped: { [kind: string]: number }
  parked_ms: number | null
  resumed_from: string | null
  parked: boolean
}
/** When a run was parked, in milliseconds since the turn's request. `to_ms`: null while the run waits. */
export type Parked = { from_ms: number; to_ms: number | null; turn: string | null }
export type ReceivedCall = { id: string; name: string; arguments?: string }
export type Received = { text?: string; thoughts?: string; calls?: ReceivedCall[] }
export type ReportRow = { field: string; how: string; note: string }
export type Plan = {
  dialect?: string
  required?: boolean
  begun?: string
  nonce?: string
  asked?: Json
  report?: string | [string, string, string?][] | ReportRow[] | { [field: string]: string }
}
export type TurnReply = Omit<TurnLine, 'parked'> & {
  contents: 'memory' | 'disk' | 'gone'
  parked: Parked[]
  request: Json
  turn: Json
  plan: Plan | null
  wrote: string
  got: Received | null
  cut: boolean
  counts: { [Kind in RowKind]?: number }
  message?: string | null
}
/** A turn as its page uses it. */
export type Turn = Omit<TurnReply, 'parked'> & { parked: false; parked_after: Parked | null; waits: boolean }
export type Replay = {
  same: boolean
  differences: { where: string; then: Json; now: Json }[]
  wire_then: string
  wire_now: string
}

export type Totals = {
  requests: number
  errors: number
  calls: number
  parked: number
  ttft_ms_p50: number | null
  ttft_ms_p95: number | null
  tokens_in: number
  tokens_out: number
}
/** `at` is the bucket's start in seconds since 1970. */
export type Bucket = Totals & { at: number }
export type Charts = {
  window: string
  bucket_s: number
  buckets: Bucket[]
  by_model: { model: string; requests: number; errors: number; ttft_ms_p50: number | null }[]
  by_tool: { tool: string; calls: number }[]
  totals: Totals
}
/** The layout of a timeline, which shows `from` to `to`. `x` returns the position of a moment. */
export type Scale = { x(at: number): number; from: number; to: number; start: number; space: number }
/** The rows of one lane: lists with the time, the tone and the index of each row. */
export type Lane = { at: number[]; tone: number[]; index: number[]; whole: boolean }
export type CallBar = {
  index: number
  choice: string | undefined
  name: string
  from: number
  to: number | null
}

// --- the API -----------------------------------------------------------------------------------------------

type Nothing = Record<string, never>

/** What `GET /ui/api{Path}` returns. */
export type GetReply<Path extends string> = Path extends `${infer Route}?${string}`
  ? GetReply<Route>
  : Path extends '/session'
    ? Session
    : Path extends '/settings'
      ? Settings
      : Path extends '/settings/models'
        ? ModelList
        : Path extends '/settings/health'
          ? { health: { [id: string]: ModelHealth } }
          : Path extends '/settings/folders'
            ? FolderList
            : Path extends '/models'
              ? { models: Model[] }
              : Path extends '/local'
                ? LocalState
                : Path extends '/connect'
                  ? Connect
                  : Path extends '/conversations'
                    ? { conversations: ConversationRow[] }
                    : Path extends `/conversations/${string}`
                      ? Conversation
                      : Path extends '/approvals'
                        ? { approvals: Approval[]; pending: number }
                        : Path extends `/approvals/${string}`
                          ? Approval
                          : Path extends '/servers'
                            ? McpServers
                            : Path extends '/definitions'
                              ? { definitions: Definition[] }
                              : Path extends '/grants'
                                ? { grants: Grant[] }
                                : Path extends '/audit'
                                  ? { audit: AuditRow[] }
                                  : Path extends '/charts'
                                    ? Charts
                                    : Path extends '/turns'
                                      ? { turns: TurnLine[]; more: boolean }
                                      : Path extends `/turns/${string}/frames`
                                        ? { rows: Row[]; total: number }
                                        : Path extends `/turns/${string}/curl`
                                          ? { curl: string }
                                          : Path extends `/turns/${string}`
                                            ? TurnReply
                                            : never

/** What `POST /ui/api{Path}` returns. */
export type PostReply<Path extends string> = Path extends '/session'
  ? { page: string }
  : Path extends `/servers/${string}`
    ? McpServers
    : Path extends '/definitions'
      ? { definitions: Definition[] }
      : Path extends '/session/link'
        ? { url: string }
        : Path extends '/session/code'
          ? Nothing
          : Path extends '/local/download'
            ? LocalState
            : Path extends '/settings/models'
              ? ModelList
              : Path extends '/settings/names'
                ? { names: string[] }
                : Path extends '/settings/test'
                  ? ModelTest
                  : Path extends '/conversations' | '/tours'
                    ? Conversation
                    : Path extends `/conversations/${string}`
                      ? Nothing
                      : Path extends `/approvals/${string}/preview`
                        ? { shown: Preview; digest: string; problem_note: string; rule: string }
                        : Path extends `/approvals/${string}/decision`
                          ? Approval
                          : Path extends `/connect/${string}/test`
                            ? ConnectTest
                            : Path extends `/turns/${string}/replay`
                              ? Replay
                              : never

/** What `PUT /ui/api{Path}` returns. */
export type PutReply<Path extends string> = Path extends '/settings'
  ? Settings
  : Path extends `/settings/models/${string}`
    ? ModelList
    : Path extends '/settings/vault' | '/session/code'
      ? Nothing
      : never

export type CallOptions = { signal?: AbortSignal; quiet?: boolean }

/** The events of the live stream. */
export type LiveEvents = {
  state: 'open' | 'lost'
  lost: Nothing
  boot: { boot: string; version: string }
  approvals: { pending?: number }
  conversations: Nothing
  settings: Nothing
  /** Tools, states or rules of MCP servers may have changed. */
  servers: Nothing
  local: LocalState
  chat: Operation
  turn: { turn?: TurnLine }
}
