import { InvalidPayloadError, text } from './errors.js';
import { type Outcome, type When, given } from './outcome.js';
import { type StandardSchema, validate } from './schema.js';
import { type Duration, interval } from './time.js';

/** The header that names the task of a document where several tasks share a queue. */
export const TASK_HEADER = 'fetchq-task';

/** A JSON value. */
export type Json = string | number | boolean | null | readonly Json[] | { readonly [key: string]: Json };

/** What failed, for a decision about a retry. */
export interface Failure {
  readonly queue: string;
  readonly subject: string;
  /** Attempts since the last success, this one included. */
  readonly attempts: number;
  readonly maxAttempts: number;
}

/** Decides about a document whose handler has failed. `undefined`: as the retry policy of the queue says. */
export type Retry = (error: unknown, failure: Failure) => Outcome | undefined;

export interface TaskOptions {
  /** The queue. By default the name of the task. Several tasks can share one. */
  readonly queue?: string;
  /** The version of the payload: workers lease only the versions that they know. By default 0. */
  readonly version?: number;
  /** Makes the payload of version n + 1 from one of version n. Documents of these versions are leased too. */
  readonly upcast?: Readonly<Record<number, (payload: Json) => Json>>;
  /** How long a lease lasts until it is extended. By default as the queue is set. */
  readonly lease?: Duration;
  /** How long a handler may take. By default as long as it wants. */
  readonly timeout?: Duration;
  readonly retry?: Retry;
}

/** A kind of work: where its documents are, and what their payloads look like. Made by {@link defineTask}. */
export interface Task<Input = unknown, Output = Input> extends TaskOptions {
  readonly name: string;
  readonly queue: string;
  readonly version: number;
  readonly schema: StandardSchema<Input, Output> | undefined;
}

/** Options of a document that is put, by name of the argument of `doc_put`. */
export interface DocOptions {
  /** Identifies the document in its queue. By default a new UUID. */
  readonly subject?: string;
  /** How long after now, by the clock of the server, it is due. */
  readonly delay?: Duration;
  /** When it is due. */
  readonly at?: Date | string;
  /** A greater one is leased first. */
  readonly priority?: number;
  /** What happens when the subject exists: `ignore`, `replace`, `merge`, `earliest`, `debounce`, `reset`, `once`. */
  readonly mode?: Mode;
  /** Documents with the same key run one at a time, if the queue is ordered. */
  readonly orderingKey?: string;
  readonly maxAttempts?: number;
  readonly headers?: Readonly<Record<string, Json>>;
  /** How long after its time it is killed if it has not begun. */
  readonly expiresIn?: Duration;
  /** One document for equal values of these keys of the payload, at a time or for each period. */
  readonly unique?: { readonly by?: readonly string[]; readonly per?: Duration };
}

/** One mode of `doc_put`. */
export type SimpleMode = 'ignore' | 'replace' | 'merge' | 'earliest' | 'debounce' | 'reset' | 'once';
/** A mode of `doc_put`, or two of them. */
export type Mode = SimpleMode | `${SimpleMode},${SimpleMode}`;

/** Defines a task whose payload is checked by a schema, when it is put and when it is handled. */
export function defineTask<Input, Output>(
  name: string,
  options: TaskOptions & { readonly schema: StandardSchema<Input, Output> },
): Task<Input, Output>;
/** Defines a task by a type alone: the payload is what the producer has put. */
export function defineTask<Payload = unknown>(name: string, options?: TaskOptions): Task<Payload>;
export function defineTask(name: string, options: TaskOptions & { readonly schema?: StandardSchema } = {}): Task {
  const version = options.version ?? 0;
  for (const from of Object.keys(options.upcast ?? {}).map(Number)) {
    for (let step = from; step < version; step++) {
      if (!options.upcast?.[step]) throw new TypeError(`task ${name}: upcast has no step from version ${step}`);
    }
  }
  return Object.freeze({ ...options, name, queue: options.queue ?? name, version, schema: options.schema });
}

/** The versions whose documents a worker of the task leases: its own, and those that it can upcast. */
export function versions(task: Task): number[] {
  const older = Object.keys(task.upcast ?? {}).map(Number);
  return [task.version, ...older.filter((version) => version < task.version)];
}

/** The type that `put` takes for a task. */
export type InputOf<T> = T extends Task<infer Input, unknown> ? Input : never;
/** The type that a handler of a task gets. */
export type OutputOf<T> = T extends Task<unknown, infer Output> ? Output : never;

/** A document as `doc_put_many` takes it. */
export interface PutDoc {
  queue: string;
  subject?: string;
  payload?: unknown;
  headers?: Record<string, Json>;
  [key: string]: unknown;
}

/**
 * Checks a payload, and makes the document of it. What is stored is the input of the schema and not its output,
 * because the worker applies the schema again.
 */
export async function encode(
  // Any task will do: its types were checked where it was put.
  task: Task,
  payload: unknown,
  options: DocOptions,
  at = '',
): Promise<PutDoc> {
  const what = `the payload of task ${task.name}${at}`;
  if (task.schema) {
    const checked = await validate(task.schema, payload);
    if ('reason' in checked) throw new InvalidPayloadError(`${what} does not match its schema: ${checked.reason}`);
  }
  let json: unknown;
  try {
    json = JSON.stringify(payload);
  } catch (error) {
    throw new InvalidPayloadError(`${what} is not JSON: ${text(error)}`, { cause: error });
  }
  if (typeof json === 'string' && /\\u0000|\\ud[89a-f]/.test(json) && hasUnstorable(payload)) {
    throw new InvalidPayloadError(`${what} has a NUL or half of a character, which PostgreSQL cannot store`);
  }
  const headers: Record<string, Json> = { ...options.headers };
  if (task.name !== task.queue) headers[TASK_HEADER] = task.name;
  const { unique } = options;
  return given({
    queue: task.queue,
    subject: options.subject,
    payload: payload ?? undefined,
    headers: Object.keys(headers).length > 0 ? headers : undefined,
    version: task.version === 0 ? undefined : task.version,
    delay: options.delay === undefined ? undefined : interval(options.delay),
    due_at: options.at instanceof Date ? options.at.toISOString() : options.at,
    priority: options.priority,
    mode: options.mode,
    ordering_key: options.orderingKey,
    max_attempts: options.maxAttempts,
    expires_in: options.expiresIn === undefined ? undefined : interval(options.expiresIn),
    unique_by: unique ? (unique.by ?? []) : undefined,
    unique_per: unique?.per === undefined ? undefined : interval(unique.per),
  }) as PutDoc;
}

function hasUnstorable(value: unknown): boolean {
  let found = false;
  JSON.stringify(value, (key, part: unknown) => {
    for (const one of [key, part]) {
      if (typeof one === 'string' && (one.includes('\0') || /\p{Surrogate}/u.test(one))) found = true;
    }
    return part;
  });
  return found;
}

/** Makes what the handler gets of a payload. Throws an {@link InvalidPayloadError} that says why it cannot. */
export async function decode(task: Task, payload: Json, version: number): Promise<unknown> {
  let value = payload;
  try {
    for (let from = version; from < task.version; from++) {
      const step = task.upcast?.[from];
      if (!step) throw new Error(`there is no upcast from version ${from}`);
      value = step(value);
    }
  } catch (error) {
    throw new InvalidPayloadError(`the payload of version ${version} cannot be upcast: ${text(error)}`, {
      cause: error,
    });
  }
  if (!task.schema) return value;
  const checked = await validate(task.schema, value);
  if ('reason' in checked) throw new InvalidPayloadError(`the payload does not match its schema: ${checked.reason}`);
  return checked.value;
}

export type { When };
