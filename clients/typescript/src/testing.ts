import { randomUUID } from 'node:crypto';
import type { Cancelled, Document, Fetchq, InTransaction, Producer, PutItem, PutOptions, Settled } from './client.js';
import { TxExecutor, textArray } from './driver.js';
import { FetchqError } from './errors.js';
import { Job } from './job.js';
import { type Outcome, returned } from './outcome.js';
import { type Plugin, type PutResult, consoleLogger } from './plugin.js';
import type { TxHandler } from './registration.js';
import * as sql from './sql.js';
import { type Json, type Retry, type Task, decode, encode } from './task.js';
import { type Duration, milliseconds } from './time.js';
import type { Worker } from './worker.js';

/** A document that was put into a fake. */
export interface FakePut<Payload = unknown> {
  readonly subject: string;
  /** As a worker would read it: it has been JSON. */
  readonly payload: Payload;
  readonly options: PutOptions;
  readonly action: PutResult['action'];
}

/** A producer for unit tests: it has no database, checks payloads as the real one does, and remembers them. */
export class FakeFetchq implements Producer {
  readonly #puts = new Map<string, (FakePut & { status: Settled['status']; settled?: Settled })[]>();

  /** What was put for a task, in order. */
  puts<Input>(task: Task<Input, unknown>): FakePut<Input>[] {
    return (this.#puts.get(key(task)) ?? []).map(({ subject, payload, options, action }) => ({
      subject,
      payload: payload as Input,
      options,
      action,
    }));
  }

  /** Forgets everything. */
  clear(): void {
    this.#puts.clear();
  }

  /** Decides what `wait` gives. */
  settle(task: Task, subject: string, settled: Partial<Settled>): void {
    const doc = this.#find(task, subject);
    if (!doc) throw new FetchqError(`there is no document "${subject}" of task ${task.name}`);
    doc.settled = { status: 'completed', result: null, message: null, ...settled };
    doc.status = doc.settled.status;
  }

  async put<Input>(task: Task<Input, unknown>, payload: NoInfer<Input>, options: PutOptions = {}): Promise<PutResult> {
    const doc = await encode(task, payload, options);
    const list = this.#puts.get(key(task)) ?? [];
    this.#puts.set(key(task), list);
    const subject = doc.subject ?? randomUUID();
    const known = list.findLast((one) => one.subject === subject && /^(planned|pending|active)$/.test(one.status));
    const isIgnored = known !== undefined && /^(ignore|once|reset)?$/.test(options.mode ?? '');
    const action = isIgnored ? 'ignored' : known ? 'updated' : 'created';
    const stored = JSON.parse(JSON.stringify(doc.payload ?? {})) as unknown;
    list.push({ subject, payload: stored, options, action, status: 'pending' });
    return { subject, action };
  }

  async putMany<Input>(
    task: Task<Input, unknown>,
    items: readonly PutItem<NoInfer<Input>>[],
    options: InTransaction<unknown> = {},
  ): Promise<PutResult[]> {
    const results: PutResult[] = [];
    for (const { payload, ...item } of items) results.push(await this.put(task, payload, { ...item, ...options }));
    return results;
  }

  cancel(task: Task, subject: string): Promise<Cancelled> {
    const doc = this.#find(task, subject);
    const status = doc?.status ?? null;
    const wasCancelled = status !== null && /^(planned|pending|active)$/.test(status);
    if (doc && wasCancelled) this.settle(task, subject, { status: 'killed', message: 'cancelled' });
    return Promise.resolve({ wasCancelled, status });
  }

  get<Input>(task: Task<Input, unknown>, subject: string): Promise<Document<Input> | undefined> {
    const doc = this.#find(task, subject);
    return Promise.resolve(
      doc && {
        subject,
        status: doc.status,
        payload: doc.payload as Input,
        headers: doc.options.headers ?? null,
        version: task.version,
        priority: doc.options.priority ?? 0,
        attempts: 0,
        maxAttempts: doc.options.maxAttempts ?? 25,
        iterations: 0,
        createdAt: new Date(0),
        dueAt: null,
        settledAt: null,
        leaseEnds: null,
        expiresAt: null,
        worker: null,
        result: doc.settled?.result ?? null,
        progress: null,
        lastError: doc.settled?.message ?? null,
        orderingKey: doc.options.orderingKey ?? null,
        isFromHistory: false,
      },
    );
  }

  wait(task: Task, subject: string): Promise<Settled> {
    const doc = this.#find(task, subject);
    if (!doc) return Promise.reject(new FetchqError(`there is no document "${subject}" of task ${task.name}`));
    return Promise.resolve(doc.settled ?? { status: doc.status, result: null, message: null });
  }

  #find(task: Task, subject: string) {
    return this.#puts.get(key(task))?.findLast((doc) => doc.subject === subject);
  }
}

function key(task: Task): string {
  return `${task.queue}\n${task.name}`;
}

/** A producer for unit tests. */
export function fakeFetchq(): FakeFetchq {
  return new FakeFetchq();
}

export interface RunHandlerOptions<Tx = unknown> {
  readonly subject?: string;
  readonly attempts?: number;
  readonly maxAttempts?: number;
  readonly headers?: Readonly<Record<string, Json>>;
  /** What the attempts before have stored. */
  readonly saved?: Json;
  readonly lastError?: string;
  /** Aborts the signal of the context, as a stop of the worker does. */
  readonly signal?: AbortSignal;
  /** By default that of the task. */
  readonly retry?: Retry;
  readonly use?: readonly Plugin[];
  readonly client?: Producer;
  /** The transaction of a transactional handler. */
  readonly tx?: Tx;
  /** Gets what `ctx.progress` and `ctx.step` store. */
  readonly onProgress?: (saved: Json) => void;
}

/**
 * Calls a handler once, as a worker does, without a database, and gives what the worker would do with the document;
 * `undefined` if nothing, because its lease was lost. The payload goes through JSON and the schema of the task.
 */
export async function runHandler<Input, Output, Tx = unknown>(
  task: Task<Input, Output>,
  handler: TxHandler<NoInfer<Output>, Tx>,
  payload: NoInfer<Input>,
  options: RunHandlerOptions<Tx> = {},
): Promise<Outcome | undefined> {
  const doc = await encode(task, payload, { ...(options.headers && { headers: options.headers }) });
  const stored = JSON.parse(JSON.stringify(doc.payload ?? {})) as Json;
  const now = Date.now() / 1000;
  const row = {
    subject: options.subject ?? 'test',
    payload: JSON.stringify(stored),
    headers: JSON.stringify(doc.headers ?? {}),
    numbers: ['900', '0', options.attempts ?? 1, options.maxAttempts ?? 25, now, now].join(' '),
    lease: '1',
    last_error: options.lastError ?? null,
    progress: options.saved === undefined ? null : JSON.stringify(options.saved),
  };
  const host = {
    name: 'test',
    client: options.client ?? new FakeFetchq(),
    logger: consoleLogger,
    redact: undefined,
    store: (one: Job): Promise<void> => {
      options.onProgress?.(one.current);
      return Promise.resolve();
    },
    stopping: (): void => undefined,
  };
  const job = new Job(host, task.queue, task.name, task.version, row, performance.now(), performance.now(), null);
  job.tx = options.tx;
  const stop = (): void => {
    job.stop('shutdown');
  };
  if (options.signal?.aborted) stop();
  options.signal?.addEventListener('abort', stop, { once: true });
  let outcome: Outcome | undefined;
  try {
    const value = (await decode(task, stored, task.version)) as Output;
    let next = (): Promise<unknown> => Promise.resolve().then(() => handler(value, job as never));
    for (const plugin of [...(options.use ?? [])].reverse()) {
      const inner = next;
      if (plugin.handle) next = () => plugin.handle?.(job, inner) ?? inner();
    }
    outcome = returned(await next());
  } catch (error) {
    const failure = job.failed(error, { retry: options.retry ?? task.retry, timeout: task.timeout });
    // The details are for the log of the queue, and no test compares them.
    if (failure) outcome = Object.assign(failure, { fields: without(failure.fields, 'details') });
  } finally {
    options.signal?.removeEventListener('abort', stop);
  }
  return outcome;
}

function without(fields: Readonly<Record<string, unknown>>, key: string): Record<string, unknown> {
  return Object.fromEntries(Object.entries(fields).filter(([name]) => name !== key));
}

/**
 * Has a worker work on a real server until its queues have nothing that is due or active, and stops it. Documents
 * that are planned, or wait for a retry, stay.
 */
export async function drain<Tx>(
  client: Fetchq<Tx>,
  worker: Worker<Tx>,
  options: { readonly timeout?: Duration } = {},
): Promise<void> {
  const end = performance.now() + milliseconds(options.timeout ?? 30_000);
  await worker.start();
  try {
    for (;;) {
      const [row] = await client.driver.query(sql.UNFINISHED, [textArray(worker.queues)]);
      if (row?.['count'] === '0' && worker.metrics().slotsUsed === 0) break;
      if (performance.now() > end) throw new FetchqError(`the queues still have ${row?.['count'] ?? ''} documents`);
      await new Promise((resolve) => setTimeout(resolve, 20));
    }
  } finally {
    await worker.stop();
  }
}

export { TxExecutor };
