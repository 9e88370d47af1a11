import type { Producer } from './client.js';
import type { Context } from './context.js';
import type { Row } from './driver.js';
import { FetchqError, InvalidPayloadError, StopError, type StopReason, clean, text } from './errors.js';
import { type Action, Outcome, reject, snooze } from './outcome.js';
import type { Logger } from './plugin.js';
import { type DocOptions, type Json, type PutDoc, type Retry, type Task, encode } from './task.js';

/** Where the steps of a document are in its progress. */
const STEPS = 'fetchq-steps';
/** How much of a stack is kept in the details of a failure. */
const MAX_STACK = 4000;

/** What a job needs of its worker. */
export interface JobHost {
  readonly name: string;
  readonly client: Producer;
  readonly logger: Logger;
  /** Stores the progress of a job with its next heartbeat, which comes at once. */
  store(job: Job): Promise<void>;
  /** The handler was asked to stop. */
  stopping(job: Job): void;
  readonly redact: ((text: string) => string) | undefined;
}

/** Decides what becomes of a failure. */
export interface FailurePolicy {
  readonly retry: Retry | undefined;
  readonly timeout: string | number | undefined;
}

/** A leased document, from its lease to its settlement. It is also the context of its handler. */
export class Job implements Context {
  readonly queue: string;
  readonly task: string;
  readonly subject: string;
  readonly version: number;
  readonly priority: number;
  readonly attempts: number;
  readonly maxAttempts: number;
  readonly headers: Readonly<Record<string, Json>>;
  readonly createdAt: Date;
  readonly dueAt: Date;
  readonly lastError: string | null;
  readonly lease: string;
  readonly payload: string;
  /** When the answer that leased it came, on the monotonic clock. */
  readonly beganAt = performance.now();
  /** What the heartbeat has to extend, or null: as the queue is set. */
  readonly duration: string | null;
  /** When the lease may be over, on the monotonic clock: counted from when the last call was sent. */
  deadline: number;
  /** When the heartbeat extends it. */
  extendAt: number;
  /** `finished`: the handler has ended, or was given up; `done`: settled, or nothing to settle. */
  state: 'running' | 'finished' | 'done' = 'running';
  /** The JSON of the settlement, when it is finished. */
  settlement = '';
  action: Action = 'complete';
  /** Its own transaction is about to settle it, so it is not in the calls of others. */
  isInTransaction = false;
  /** How often the server has refused the settlement for now. */
  refusals = 0;
  /** The settlement is that which says that the first one is not valid. */
  isReplaced = false;
  /** Its own transaction may have settled it. */
  isAmbiguous = false;
  /** The transaction of its handler. */
  tx: unknown;
  /** The slot of its handler is free again. */
  hasEnded = false;
  /** The handler does not listen to its signal. */
  isStuck = false;
  /** Whoever waits until the progress is stored. */
  unsaved: ((error?: Error) => void)[] | undefined;
  stopped: StopError | undefined;
  #saved: Json;
  #controller: AbortController | undefined;
  #steps: Record<string, Json> | undefined;
  readonly #running = new Map<string, Promise<unknown>>();
  readonly #followUps: PutDoc[] = [];

  constructor(
    readonly host: JobHost,
    queue: string,
    task: string,
    row: Row,
    sentAt: number,
    duration: string | null,
  ) {
    const number = (key: string): number => Number(row[key]);
    this.queue = queue;
    this.task = task;
    this.subject = row['subject'] ?? '';
    this.payload = row['payload'] ?? 'null';
    this.version = number('version');
    this.priority = number('priority');
    this.attempts = number('attempts');
    this.maxAttempts = number('max_attempts');
    this.headers = row['headers'] == null ? {} : (JSON.parse(row['headers']) as Record<string, Json>);
    this.createdAt = new Date(number('created_at') * 1000);
    this.dueAt = new Date(number('due_at') * 1000);
    this.lastError = row['last_error'] ?? null;
    this.lease = row['lease'] ?? '';
    this.duration = duration;
    this.deadline = 0;
    this.extendAt = 0;
    this.extended(sentAt, number('left_s') * 1000, false);
    this.#saved = row['progress'] == null ? null : (JSON.parse(row['progress']) as Json);
  }

  get worker(): string {
    return this.host.name;
  }

  get client(): Producer {
    return this.host.client;
  }

  get key(): string {
    return jobKey(this.queue, this.subject);
  }

  get signal(): AbortSignal {
    this.#controller ??= new AbortController();
    if (this.stopped && !this.#controller.signal.aborted) this.#controller.abort(this.stopped);
    return this.#controller.signal;
  }

  get log(): Logger {
    const { logger } = this.host;
    const own = this.names();
    return {
      info: (message, fields) => {
        logger.info(message, { ...own, ...fields });
      },
      warn: (message, fields) => {
        logger.warn(message, { ...own, ...fields });
      },
      error: (message, fields) => {
        logger.error(message, { ...own, ...fields });
      },
    };
  }

  /** The fields that name it in the log. */
  names(): Record<string, unknown> {
    return { queue: this.queue, subject: this.subject, attempt: this.attempts, worker: this.worker };
  }

  /** Notes how long the lease lasts, as the answer to a call says that was sent at a time. */
  extended(sentAt: number, leftMs: number, isLimited: boolean): void {
    this.deadline = sentAt + leftMs;
    // With jitter, so that documents that were leased together are not extended together for ever.
    this.extendAt = isLimited ? Infinity : sentAt + (leftMs / 3) * (0.8 + Math.random() / 5);
  }

  /** Asks the handler to stop. Only the first reason counts, but a lost document is lost whatever came before. */
  stop(reason: StopReason): void {
    if (this.state === 'done') return;
    const isOver = reason === 'lost' || reason === 'cancelled';
    if (this.stopped && !isOver) return;
    this.stopped = new StopError(reason);
    this.#controller?.abort(this.stopped);
    this.host.stopping(this);
  }

  /** Whether the document belongs to nobody or to another worker, so that there is nothing to settle. */
  get isGone(): boolean {
    return this.stopped?.reason === 'lost' || this.stopped?.reason === 'cancelled';
  }

  get saved(): Json {
    const saved = this.#saved;
    if (!isObject(saved) || !(STEPS in saved)) return saved;
    const rest = Object.fromEntries(Object.entries(saved).filter(([key]) => key !== STEPS));
    if (Object.keys(rest).length === 0) return null;
    return rest;
  }

  async progress(value: Json): Promise<void> {
    this.#saved = this.#withSteps(value);
    await this.#store();
  }

  async step<T>(name: string, run: () => T | Promise<T>): Promise<T> {
    this.#steps ??= readSteps(this.#saved);
    const known = this.#steps;
    if (Object.hasOwn(known, name)) return known[name] as T;
    const running = this.#running.get(name);
    if (running) return running as Promise<T>;
    const step = (async () => {
      const result = await run();
      // What JSON makes of it is what a later attempt gets.
      known[name] = JSON.parse(JSON.stringify(result ?? null)) as Json;
      this.#saved = this.#withSteps(this.#saved);
      await this.#store();
      return result;
    })();
    this.#running.set(name, step);
    try {
      return await step;
    } finally {
      this.#running.delete(name);
    }
  }

  #withSteps(value: Json): Json {
    this.#steps ??= readSteps(this.#saved);
    if (Object.keys(this.#steps).length === 0) return value;
    return { ...(isObject(value) ? value : value === null ? {} : { value }), [STEPS]: this.#steps };
  }

  async #store(): Promise<void> {
    if (this.stopped && this.isGone) throw this.stopped;
    const json = JSON.stringify(this.#saved);
    if (/\\u0000|\\ud[89a-f]/.test(json)) {
      throw new InvalidPayloadError('the progress has a NUL or half of a character, which PostgreSQL cannot store');
    }
    await this.host.store(this);
  }

  /** The progress as it is now. */
  get current(): Json {
    return this.#saved;
  }

  async followUp<Input>(task: Task<Input, unknown>, payload: NoInfer<Input>, options: DocOptions = {}): Promise<void> {
    this.#followUps.push(await encode(task, payload, options));
  }

  /**
   * The outcome of a handler that has thrown. `undefined`: there is nothing to settle.
   */
  failed(error: unknown, policy: FailurePolicy): Outcome | undefined {
    if (this.isGone) return undefined;
    this.#followUps.length = 0;
    if (error instanceof Outcome) return error;
    const { stopped } = this;
    const isStop = stopped !== undefined && isAbort(error, stopped);
    // Handed back as if it had not been leased: the worker has ended it, and not the handler.
    if (isStop && stopped.reason === 'shutdown') return snooze();
    const cause =
      isStop && stopped.reason === 'timeout'
        ? new StopError('timeout', `the handler took longer than its timeout of ${String(policy.timeout)}`)
        : error;
    let outcome: Outcome | undefined;
    try {
      outcome = policy.retry?.(cause, this);
    } catch (failure) {
      this.log.error('the function retry has failed', { error: text(failure) });
    }
    return outcome ?? reject(text(cause), { details: details(cause, this.worker) });
  }

  /** Writes the settlement of an outcome. */
  finish(outcome: Outcome): void {
    this.state = 'finished';
    try {
      this.#write(outcome, this.#followUps);
    } catch (error) {
      this.#write(reject(`the result is not JSON: ${text(error)}`), []);
    }
  }

  /** What is sent when the server does not accept the settlement. */
  replace(error: unknown): void {
    this.isReplaced = true;
    const what = `the outcome "${this.action}" is not valid: ${text(error)}`;
    this.#write(reject(what, { details: details(error, this.worker) }), []);
  }

  #write(outcome: Outcome, followUps: readonly PutDoc[]): void {
    this.action = outcome.action;
    const { message, details, ...fields } = outcome.fields;
    const { redact } = this.host;
    const hide = (value: string): string => clean(redact ? redact(value) : value);
    const settlement: Record<string, unknown> = {
      subject: this.subject,
      lease: this.lease,
      action: outcome.action,
      ...fields,
      message: typeof message === 'string' ? hide(message) : message,
      details: details === undefined ? undefined : deepClean(details, redact),
    };
    if (followUps.length > 0) settlement['then'] = followUps;
    this.settlement = JSON.stringify(settlement);
  }

  /** The message of the settlement, for the log. */
  get message(): string | undefined {
    return (JSON.parse(this.settlement) as { message?: string }).message;
  }
}

export function jobKey(queue: string, subject: string): string {
  return `${queue.toLowerCase()}\n${subject}`;
}

function isObject(value: unknown): value is Record<string, Json> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

function readSteps(saved: Json): Record<string, Json> {
  const steps = isObject(saved) ? saved[STEPS] : undefined;
  return isObject(steps) ? { ...steps } : {};
}

/** Whether an error is only the answer to the abort. */
function isAbort(error: unknown, stopped: StopError): boolean {
  let at = error;
  for (let depth = 0; depth < 6 && typeof at === 'object' && at !== null; depth++) {
    if (at === stopped || (at as Error).name === 'AbortError') return true;
    at = (at as Error).cause;
  }
  return false;
}

function details(error: unknown, worker: string): Record<string, unknown> {
  if (!(error instanceof Error)) return { worker };
  const { code } = error as { code?: unknown };
  return {
    worker,
    name: error.name,
    ...(typeof code === 'string' && { code }),
    ...(error.stack !== undefined && !(error instanceof FetchqError) && { stack: clean(error.stack, MAX_STACK) }),
  };
}

function deepClean(value: unknown, redact: ((text: string) => string) | undefined): unknown {
  const one = (part: string): string => clean(redact ? redact(part) : part, MAX_STACK);
  const all = (part: unknown): unknown => {
    if (typeof part === 'string') return one(part);
    if (Array.isArray(part)) return part.map(all);
    if (isObject(part)) return Object.fromEntries(Object.entries(part).map(([key, item]) => [clean(key), all(item)]));
    return part;
  };
  // By way of JSON, so that what has toJSON() is written as everywhere.
  return all(JSON.parse(JSON.stringify(value)));
}
