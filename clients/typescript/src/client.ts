import { type Driver, type Executor, TxExecutor } from './driver.js';
import { ConfigurationError, FetchqError, errorCode, text } from './errors.js';
import { type Logger, type Plugin, type PutResult, consoleLogger } from './plugin.js';
import * as sql from './sql.js';
import { type DocOptions, type Json, type PutDoc, type Task, encode } from './task.js';
import { type Duration, interval, milliseconds } from './time.js';

/** The least version of the extension that has what the package calls. */
export const LEAST_VERSION = '5.0.0';

/** A transaction in which a call is made: that of the driver, or of an ORM (`drizzleTx(tx)`). */
export interface InTransaction<Tx> {
  readonly tx?: Tx | TxExecutor;
}

export interface PutOptions<Tx = unknown> extends DocOptions, InTransaction<Tx> {}

/** One document of `putMany`. */
export interface PutItem<Input> extends DocOptions {
  readonly payload: Input;
}

/** A document as `doc_get` gives it. */
export interface Document<Payload = unknown> {
  readonly subject: string;
  readonly status: string;
  readonly payload: Payload;
  readonly headers: Readonly<Record<string, Json>> | null;
  readonly version: number;
  readonly priority: number;
  readonly attempts: number;
  readonly maxAttempts: number;
  readonly iterations: number;
  readonly createdAt: Date;
  readonly dueAt: Date | null;
  readonly settledAt: Date | null;
  readonly leaseEnds: Date | null;
  readonly expiresAt: Date | null;
  readonly worker: string | null;
  readonly result: Json;
  readonly progress: Json;
  readonly lastError: string | null;
  readonly orderingKey: string | null;
  readonly isFromHistory: boolean;
}

/** The row of `doc_get`, as JSON. */
interface StoredDocument {
  subject: string;
  status: string;
  payload: unknown;
  headers: Record<string, Json> | null;
  version: number;
  priority: number;
  attempts: number;
  max_attempts: number;
  iterations: number;
  created_at: string;
  due_at: string | null;
  settled_at: string | null;
  lease_ends: string | null;
  expires_at: string | null;
  worker: string | null;
  result: Json;
  progress: Json;
  last_error: string | null;
  ordering_key: string | null;
  is_from_history: boolean;
}

/** What `wait` gives. The status of a document that is not settled yet is `planned`, `pending` or `active`. */
export interface Settled {
  readonly status: 'completed' | 'killed' | 'dropped' | 'planned' | 'pending' | 'active';
  /** What the handler has returned. */
  readonly result: Json;
  /** Why it was killed. */
  readonly message: string | null;
}

/** A schedule, which puts a document at each tick. */
export interface Schedule<Input = unknown> {
  readonly task: Task<Input, unknown>;
  /** A cron expression such as `30 2 * * *`, or an interval such as `5 minutes`. */
  readonly cron: string;
  readonly payload?: Input;
  readonly timezone?: string;
  readonly priority?: number;
  readonly catchUp?: 'skip' | 'once' | 'all';
  readonly catchUpLimit?: number;
  readonly jitter?: Duration;
  readonly startsAt?: Date | string;
  readonly endsAt?: Date | string;
  readonly headers?: Readonly<Record<string, Json>>;
}

/** What `sync` makes true. */
export interface Declarations {
  /** Settings of queues, as `queue_configure` takes them. A queue that does not exist is created. */
  readonly queues?: Readonly<Record<string, Readonly<Record<string, Json>>>>;
  /** All schedules of the owner: those that are not named are dropped. */
  readonly schedules?: Readonly<Record<string, Schedule>>;
  /** Whose schedules these are: the name of the application. By default `app` of the client. */
  readonly owner?: string;
}

/** What code that puts documents needs. {@link Fetchq} and the fake of the tests implement it. */
export interface Producer<Tx = unknown> {
  put<Input>(task: Task<Input, unknown>, payload: NoInfer<Input>, options?: PutOptions<Tx>): Promise<PutResult>;
  putMany<Input>(
    task: Task<Input, unknown>,
    items: readonly PutItem<NoInfer<Input>>[],
    options?: InTransaction<Tx>,
  ): Promise<PutResult[]>;
  cancel(task: Task, subject: string, options?: InTransaction<Tx>): Promise<Cancelled>;
  get<Input>(
    task: Task<Input, unknown>,
    subject: string,
    options?: InTransaction<Tx>,
  ): Promise<Document<Input> | undefined>;
  wait(task: Task, subject: string, options?: WaitOptions): Promise<Settled>;
}

export interface Cancelled {
  readonly wasCancelled: boolean;
  /** The status before the call; null: there is no such document. */
  readonly status: string | null;
}

export interface WaitOptions {
  /** By default 30 seconds. */
  readonly timeout?: Duration;
  readonly signal?: AbortSignal;
}

export interface FetchqOptions {
  /** Middleware around put; workers of this client use it too. */
  readonly use?: readonly Plugin[];
  readonly logger?: Logger;
  /** Names the application: `sync` drops only schedules that it has made. */
  readonly app?: string;
}

/** Puts documents, and reads what became of them. It connects when it is called first. */
export class Fetchq<Tx = unknown> implements Producer<Tx> {
  readonly use: readonly Plugin[];
  readonly logger: Logger;
  readonly #app: string | undefined;
  #checked: Promise<void> | undefined;

  constructor(
    readonly driver: Driver<Tx>,
    options: FetchqOptions = {},
  ) {
    this.use = options.use ?? [];
    this.logger = options.logger ?? consoleLogger;
    this.#app = options.app;
  }

  /** Puts a document, in the transaction `tx` if there is one. */
  async put<Input>(
    task: Task<Input, unknown>,
    payload: NoInfer<Input>,
    options: PutOptions<Tx> = {},
  ): Promise<PutResult> {
    const [result] = await this.#put([await encode(task, payload, options)], options);
    if (!result) throw new FetchqError('doc_put_many has returned no row');
    return result;
  }

  /** Puts documents in one call, which costs a fraction of single ones: all of them, or none. */
  async putMany<Input>(
    task: Task<Input, unknown>,
    items: readonly PutItem<NoInfer<Input>>[],
    options: InTransaction<Tx> = {},
  ): Promise<PutResult[]> {
    const docs = await Promise.all(
      items.map(({ payload, ...item }, at) => encode(task, payload, item, ` at position ${at + 1}`)),
    );
    return docs.length > 0 ? this.#put(docs, options) : [];
  }

  /** Kills a document that is not finished. Its handler is told by its signal. */
  async cancel(task: Task, subject: string, options: InTransaction<Tx> = {}): Promise<Cancelled> {
    const [row] = await this.#call(options, sql.CANCEL, [task.queue, subject]);
    return { wasCancelled: row?.['cancelled'] === 'true', status: row?.['status'] ?? null };
  }

  /** Reads a document as it is now, or as it was when it was settled last. */
  async get<Input>(
    task: Task<Input, unknown>,
    subject: string,
    options: InTransaction<Tx> = {},
  ): Promise<Document<Input> | undefined> {
    const [row] = await this.#call(options, sql.GET, [task.queue, subject]);
    if (row?.['doc'] == null) return undefined;
    const doc = JSON.parse(row['doc']) as StoredDocument;
    const date = (time: string | null): Date | null => (time === null ? null : new Date(time));
    return {
      subject: doc.subject,
      status: doc.status,
      payload: doc.payload as Input,
      headers: doc.headers,
      version: doc.version,
      priority: doc.priority,
      attempts: doc.attempts,
      maxAttempts: doc.max_attempts,
      iterations: doc.iterations,
      createdAt: new Date(doc.created_at),
      dueAt: date(doc.due_at),
      settledAt: date(doc.settled_at),
      leaseEnds: date(doc.lease_ends),
      expiresAt: date(doc.expires_at),
      worker: doc.worker,
      result: doc.result,
      progress: doc.progress,
      lastError: doc.last_error,
      orderingKey: doc.ordering_key,
      isFromHistory: doc.is_from_history,
    };
  }

  /** Waits until a document is settled. The document must be committed first. */
  async wait(task: Task, subject: string, options: WaitOptions = {}): Promise<Settled> {
    const { timeout = 30_000, signal } = options;
    signal?.throwIfAborted();
    const end = performance.now() + milliseconds(timeout);
    for (;;) {
      // One call is not long, so that a connection that has died is noticed.
      const left = Math.min(Math.max(end - performance.now(), 0), 30_000);
      const call = this.#call({}, sql.AWAIT, [task.queue, subject, interval(Math.ceil(left))]);
      const [row] = await (signal ? Promise.race([call, aborted(signal)]) : call);
      const status = (row?.['status'] ?? 'dropped') as Settled['status'];
      if (/^(completed|killed|dropped)$/.test(status) || performance.now() >= end) {
        const result = row?.['result'];
        // The procedure gives jsonb, which drivers read as they like.
        return { status, result: readJson(result), message: row?.['message'] ?? null };
      }
    }
  }

  /**
   * Creates and configures queues, and makes the schedules of the owner those that are named. Safe to call from
   * several processes, and again.
   */
  async sync(declarations: Declarations): Promise<{ name: string; action: string }[]> {
    const owner = declarations.owner ?? this.#app ?? '';
    // Two applications with one name would drop the schedules of each other.
    if (declarations.schedules && owner === '') {
      throw new ConfigurationError('schedules need an owner: new Fetchq(driver, { app: … }), or sync({ owner: … })');
    }
    await this.check();
    const schedules = await Promise.all(
      Object.entries(declarations.schedules ?? {}).map(async ([name, schedule]) => {
        const { payload, headers, version, queue } = await encode(schedule.task, schedule.payload, {
          ...(schedule.headers && { headers: schedule.headers }),
        });
        const iso = (at: Date | string | undefined): string | undefined => (at instanceof Date ? at.toISOString() : at);
        return {
          name,
          queue,
          schedule: schedule.cron,
          payload,
          headers,
          version,
          timezone: schedule.timezone,
          priority: schedule.priority,
          catch_up: schedule.catchUp,
          catch_up_limit: schedule.catchUpLimit,
          jitter: schedule.jitter === undefined ? undefined : interval(schedule.jitter),
          starts_at: iso(schedule.startsAt),
          ends_at: iso(schedule.endsAt),
        };
      }),
    );
    return this.driver.transaction(async (_tx, executor) => {
      for (const [queue, settings] of Object.entries(declarations.queues ?? {})) {
        await executor.query(sql.QUEUE_CREATE, [queue]);
        if (Object.keys(settings).length > 0) {
          await executor.query(sql.QUEUE_CONFIGURE, [queue, JSON.stringify(settings)]);
        }
      }
      if (!declarations.schedules) return [];
      const rows = await executor.query(sql.SCHEDULES_SYNC, [owner, JSON.stringify(schedules)]);
      return rows.map((row) => ({ name: row['name'] ?? '', action: row['action'] ?? '' }));
    });
  }

  /** Looks once whether the database has the extension, in a version that fits. */
  check(): Promise<void> {
    this.#checked ??= this.#check().catch((error: unknown) => {
      this.#checked = undefined;
      throw error;
    });
    return this.#checked;
  }

  /** Whether the library is preloaded, so that commits wake sessions that wait. Known after the check. */
  isPreloaded = true;

  async #check(): Promise<void> {
    let row;
    try {
      [row] = await this.driver.query(sql.INFO, []);
    } catch (error) {
      throw explained(error);
    }
    const version = row?.['extension'] ?? '';
    this.isPreloaded = row?.['preloaded'] !== 'false';
    if (compareVersions(version, LEAST_VERSION) < 0) {
      throw new ConfigurationError(
        `the extension fetchq has version ${version}, and this client needs ${LEAST_VERSION} or newer: alter extension fetchq update`,
      );
    }
  }

  async #put(docs: PutDoc[], options: InTransaction<Tx>): Promise<PutResult[]> {
    const send = async (): Promise<PutResult[]> => {
      const rows = await this.#call(options, sql.PUT, [JSON.stringify(docs), null]);
      return rows.map((row) => ({
        subject: row['subject'] ?? '',
        action: (row['action'] ?? 'ignored') as PutResult['action'],
      }));
    };
    return this.use.reduceRight<() => Promise<PutResult[]>>(
      (next, plugin) => (plugin.put ? () => plugin.put?.(docs, next) ?? next() : next),
      send,
    )();
  }

  async #call(options: InTransaction<Tx>, statement: string, values: readonly (string | null)[]) {
    try {
      return await this.executor(options).query(statement, values);
    } catch (error) {
      throw explained(error);
    }
  }

  /** Whatever runs statements in the transaction of the options, or else the pool. */
  executor({ tx }: InTransaction<Tx>): Executor {
    if (tx === undefined) return this.driver;
    return tx instanceof TxExecutor ? tx : this.driver.on(tx);
  }
}

/** An error that says that there is no fetchq becomes one that says what to do. Others stay as they are. */
function explained(error: unknown): unknown {
  const { code } = errorCode(error);
  if (/^(3F000|42883)$/.test(code) && (text(error) + String((error as Error | null)?.cause)).includes('fetchq')) {
    return new ConfigurationError(
      `the extension fetchq is missing in this database, or older than ${LEAST_VERSION}: create extension fetchq, or alter extension fetchq update (${text(error)})`,
      { cause: error },
    );
  }
  return error;
}

function compareVersions(a: string, b: string): number {
  const parts = (version: string): number[] => version.split(/[.-]/).map((part) => Number.parseInt(part, 10) || 0);
  const [left, right] = [parts(a), parts(b)];
  for (let at = 0; at < 3; at++) {
    const difference = (left[at] ?? 0) - (right[at] ?? 0);
    if (difference !== 0) return difference;
  }
  return 0;
}

/** Reads jsonb: as text if the driver has not read it yet. A JSON string cannot be told from that, see `AWAIT`. */
function readJson(value: unknown): Json {
  return (value ?? null) as Json;
}

function aborted(signal: AbortSignal): Promise<never> {
  return new Promise((_, fail) => {
    signal.addEventListener(
      'abort',
      () => {
        fail(signal.reason instanceof Error ? signal.reason : new FetchqError('the wait was aborted'));
      },
      { once: true },
    );
  });
}
