import type { Producer } from './client.js';
import type { Context } from './context.js';
import type { Row } from './driver.js';
import { FetchqError, InvalidPayloadError, StopError, type StopReason, clean, text } from './errors.js';
import { type Action, Outcome, reject, snooze } from './outcome.js';
import type { Lane } from './lane.js';
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
  readonly subject: string;
  readonly lease: string;
  readonly payload: string;
  readonly key: string;
  /** When the lease may be over, on the monotonic clock: counted from when the last call was sent. */
  deadline = 0;
  /** When the heartbeat extends it. */
  extendAt = 0;
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
  /** A call that settles it is under way. */
  isSent = false;
  /** It may be settled: the answer of its own transaction, or of the call, was lost. */
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
  /** That of the batch whose handler has it. */
  batch: AbortController | undefined;
  /** The clock of its timeout, and then of whether it is stuck. */
  timer: NodeJS.Timeout | undefined;
  /** Where it came from, and where its settlement goes. */
  lane: Lane | undefined;
  /** Read when they are asked for, as most handlers do not. */
  #headers: Readonly<Record<string, Json>> | undefined;
  #saved: Json | undefined;
  #controller: AbortController | undefined;
  #steps: Record<string, Json> | undefined;
  #running: Map<string, Promise<unknown>> | undefined;
  #followUps: PutDoc[] | undefined;

  constructor(
    readonly host: JobHost,
    readonly queue: string,
    readonly task: string,
    readonly version: number,
    readonly row: Row,
    sentAt: number,
    /** When the answer that leased it came, on the monotonic clock. */
    readonly beganAt: number,
    /** What the heartbeat has to extend, or null: as the queue is set. */
    readonly duration: string | null,
  ) {
    this.subject = row['subject'] ?? '';
    this.payload = row['payload'] ?? 'null';
    this.lease = row['lease'] ?? '';
    this.key = jobKey(queue, this.subject);
    this.extended(sentAt, Number.parseFloat(row['numbers'] ?? '') * 1000, false);
  }

  /** How long the lease lasts, and the numbers of the document, in the order of the statement. */
  #number(at: number): number {
    return Number(this.row['numbers']?.split(' ')[at]);
  }

  get priority(): number {
    return this.#number(1);
  }

  get attempts(): number {
    return this.#number(2);
  }

  get maxAttempts(): number {
    return this.#number(3);
  }

  get headers(): Readonly<Record<string, Json>> {
    return (this.#headers ??= JSON.parse(this.row['headers'] ?? '{}') as Record<string, Json>);
  }

  get createdAt(): Date {
    return new Date(this.#number(4) * 1000);
  }

  get dueAt(): Date {
    return new Date(this.#number(5) * 1000);
  }

  get lastError(): string | null {
    return this.row['last_error'] ?? null;
  }

  get worker(): string {
    return this.host.name;
  }

  get client(): Producer {
    return this.host.client;
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
    this.batch?.abort(this.stopped);
    this.host.stopping(this);
  }

  /** Whether the document belongs to nobody or to another worker, so that there is nothing to settle. */
  get isGone(): boolean {
    return this.stopped?.reason === 'lost' || this.stopped?.reason === 'cancelled';
  }

  get saved(): Json {
    const saved = this.current;
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
    this.#steps ??= readSteps(this.current);
    const known = this.#steps;
    if (Object.hasOwn(known, name)) return known[name] as T;
    this.#running ??= new Map();
    const running = this.#running.get(name);
    if (running) return running as Promise<T>;
    const step = (async () => {
      const result = await run();
      // What JSON makes of it is what a later attempt gets.
      known[name] = JSON.parse(JSON.stringify(result ?? null)) as Json;
      this.#saved = this.#withSteps(this.current);
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
    this.#steps ??= readSteps(this.current);
    if (Object.keys(this.#steps).length === 0) return value;
    return { ...(isObject(value) ? value : value === null ? {} : { value }), [STEPS]: this.#steps };
  }

  async #store(): Promise<void> {
    if (this.stopped && this.isGone) throw this.stopped;
    const json = JSON.stringify(this.current);
    if (/\\u0000|\\ud[89a-f]/.test(json)) {
      throw new InvalidPayloadError('the progress has a NUL or half of a character, which PostgreSQL cannot store');
    }
    await this.host.store(this);
  }

  /** The progress as it is now. */
  get current(): Json {
    if (this.#saved === undefined) this.#saved = JSON.parse(this.row['progress'] ?? 'null') as Json;
    return this.#saved;
  }

  async followUp<Input>(task: Task<Input, unknown>, payload: NoInfer<Input>, options: DocOptions = {}): Promise<void> {
    (this.#followUps ??= []).push(await encode(task, payload, options));
  }

  /**
   * The outcome of a handler that has thrown. `undefined`: there is nothing to settle.
   */
  failed(error: unknown, policy: FailurePolicy): Outcome | undefined {
    if (this.isGone) return undefined;
    this.#followUps = undefined;
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
      this.#write(reject(`the result is not JSON: ${text(error)}`), undefined);
    }
  }

  /** What is sent when the server does not accept the settlement. */
  replace(error: unknown): void {
    this.isReplaced = true;
    const what = `the outcome "${this.action}" is not valid: ${text(error)}`;
    this.#write(reject(what, { details: details(error, this.worker) }), undefined);
  }

  #write(outcome: Outcome, followUps: readonly PutDoc[] | undefined): void {
    this.action = outcome.action;
    const { message, details, ...fields } = outcome.fields;
    const { redact } = this.host;
    const hide = (value: string): string => clean(redact ? redact(value) : value);
    this.settlement = JSON.stringify({
      subject: this.subject,
      lease: this.lease,
      action: outcome.action,
      ...fields,
      message: typeof message === 'string' ? hide(message) : message,
      details: details === undefined ? undefined : deepClean(details, redact),
      then: followUps,
    });
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
