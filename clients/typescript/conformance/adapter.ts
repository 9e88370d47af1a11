// A translation of the lines of tests/conformance/README.md into calls of the client, and of its events into lines.
import { AsyncLocalStorageContextManager } from '@opentelemetry/context-async-hooks';
import { CompositePropagator, W3CBaggagePropagator, W3CTraceContextPropagator } from '@opentelemetry/core';
import { ROOT_CONTEXT, SpanKind, SpanStatusCode, context as active, propagation, trace } from '@opentelemetry/api';
import { BasicTracerProvider, type ReadableSpan, type SpanProcessor } from '@opentelemetry/sdk-trace-base';
import { readFileSync } from 'node:fs';
import { createInterface } from 'node:readline';
import pg from 'pg';
import postgres from 'postgres';
import * as client from '@fetchq/client';
import { otel } from '@fetchq/client/otel';
import { pgDriver } from '@fetchq/client/pg';
import { postgresDriver } from '@fetchq/client/postgres';
import { errorCode } from '#internal/errors.js';
import { extract, inject } from '#internal/otel.js';
import { encode } from '#internal/task.js';

/* eslint-disable @typescript-eslint/no-unsafe-assignment, @typescript-eslint/no-unsafe-member-access,
   @typescript-eslint/no-unsafe-argument, @typescript-eslint/no-explicit-any,
   @typescript-eslint/no-unsafe-return -- the lines are JSON of any shape */
type Line = Record<string, any>;

const library = process.argv[2] === 'postgres' ? 'postgres' : 'pg';
const gates = new Map<string, { promise: Promise<void>; open: () => void }>();
const workers = new Map<string, client.Worker>();
const traceChild = { now: false };
let fq: client.Fetchq<any>;
let pool: Pool;
const pools: Pool[] = [];

/** The pool of the application. */
interface Pool {
  driver: client.Driver<any>;
  transaction<T>(work: (tx: any, run: (statement: string) => Promise<unknown>) => Promise<T>): Promise<T>;
  run(tx: any, statement: string): Promise<unknown>;
  take(): Promise<() => void>;
  end(): Promise<void>;
}

class ApplicationError extends Error {
  constructor(
    message: string,
    readonly kind: string | undefined,
  ) {
    super(message);
  }
}

class Rollback extends Error {}

function send(line: Line): void {
  process.stdout.write(`${JSON.stringify(line)}\n`);
}

function gate(name: string) {
  let found = gates.get(name);
  if (!found) {
    let open = (): void => undefined;
    const promise = new Promise<void>((resolve) => {
      open = resolve;
    });
    found = { promise, open };
    gates.set(name, found);
  }
  return found;
}

function pgPool(url: string, max: number): Pool {
  const all = new pg.Pool({ connectionString: url, max });
  return {
    driver: pgDriver(all),
    async transaction(work) {
      const tx = await all.connect();
      try {
        await tx.query('begin');
        const result = await work(tx, (statement) => tx.query(statement));
        await tx.query('commit');
        return result;
      } catch (error) {
        await tx.query('rollback').catch(() => undefined);
        throw error;
      } finally {
        tx.release();
      }
    },
    run: (tx: pg.PoolClient, statement) => tx.query(statement),
    async take() {
      const taken = await all.connect();
      taken.on('error', () => undefined);
      return () => {
        taken.release();
      };
    },
    end: () => all.end(),
  };
}

function postgresPool(url: string, max: number, isPooled: boolean): Pool {
  const sql = postgres(url, { max, prepare: !isPooled, fetch_types: false, onnotice: () => undefined });
  return {
    driver: postgresDriver(sql),
    transaction: async (work) => (await sql.begin((tx) => work(tx, (statement) => tx.unsafe(statement)))) as never,
    run: (tx: postgres.TransactionSql, statement) => tx.unsafe(statement),
    async take() {
      const taken = await sql.reserve();
      return () => {
        taken.release();
      };
    },
    end: () => sql.end({ timeout: 1 }),
  };
}

const spans: SpanProcessor = {
  onStart: () => undefined,
  onEnd(span: ReadableSpan) {
    send({
      event: 'span',
      name: span.name,
      kind: SpanKind[span.kind].toLowerCase(),
      trace_id: span.spanContext().traceId,
      span_id: span.spanContext().spanId,
      parent_id: span.parentSpanContext?.spanId ?? null,
      links: span.links.map(({ context }) => ({ trace_id: context.traceId, span_id: context.spanId })),
      attributes: span.attributes,
      status: SpanStatusCode[span.status.code].toLowerCase(),
    });
  },
  forceFlush: () => Promise.resolve(),
  shutdown: () => Promise.resolve(),
};

function startTracing(): void {
  active.setGlobalContextManager(new AsyncLocalStorageContextManager().enable());
  propagation.setGlobalPropagator(
    new CompositePropagator({ propagators: [new W3CTraceContextPropagator(), new W3CBaggagePropagator()] }),
  );
}

function middleware(name: string): client.Plugin {
  const tell = (around: string, at: string, queue: string, subject: string | undefined): void => {
    send({ event: 'middleware', name, around, at, queue, subject: subject ?? null });
  };
  return {
    async put(docs, next) {
      for (const doc of docs) tell('put', 'before', doc.queue, doc.subject);
      try {
        return await next();
      } finally {
        for (const doc of docs) tell('put', 'after', doc.queue, doc.subject);
      }
    },
    async handle(context, next) {
      tell('handle', 'before', context.queue, context.subject);
      try {
        return await next();
      } finally {
        tell('handle', 'after', context.queue, context.subject);
      }
    },
  };
}

function logger(worker: string | null): client.Logger {
  const level = (name: string) => (message: string, fields?: Line) => {
    send({ event: 'log', worker, level: name, message, fields: fields ?? {} });
  };
  return { info: level('info'), warn: level('warn'), error: level('error') };
}

function failure(error: unknown): Line {
  const { code } = errorCode(error);
  const sqlstate = /^[0-9A-Z]{5}$/.test(code) && !/^E[A-Z]{4}$/.test(code) ? { sqlstate: code } : {};
  const message = error instanceof Error ? error.message : String(error);
  if (error instanceof Unsupported) return { code: 'unsupported', message };
  if (error instanceof client.ConfigurationError) return { code: 'config', message, ...sqlstate };
  if (error instanceof client.InvalidPayloadError || error instanceof TypeError || error instanceof RangeError) {
    return { code: 'invalid', message };
  }
  return { code: className(client.classify(error)), message, ...sqlstate };
}

function className(name: client.ErrorClass): string {
  return {
    configuration: 'config',
    invalid: 'data',
    connection: 'connection',
    conflict: 'conflict',
    lost: 'lost',
    other: 'other',
  }[name];
}

class Unsupported extends Error {}

// The payload of every task.
const schema: client.StandardSchema<Line> = {
  '~standard': {
    version: 1,
    vendor: 'conformance',
    validate(value) {
      const doc = value as Line | null;
      const wrong = (message: string) => ({ issues: [{ message }] });
      if (typeof doc !== 'object' || doc === null || Array.isArray(doc)) return wrong('not an object');
      if (doc['n'] != null && !Number.isInteger(doc['n']))
        return { issues: [{ message: 'not an integer', path: ['n'] }] };
      if (doc['to'] != null && typeof doc['to'] !== 'string')
        return { issues: [{ message: 'not a text', path: ['to'] }] };
      if (doc['upcast'] != null && !Array.isArray(doc['upcast'])) return wrong('upcast: not a list');
      return { value: doc };
    },
  },
};

function task(line: Line): client.Task<any> {
  const version = (line['version'] as number | null | undefined) ?? 0;
  const upcast = Object.fromEntries(
    Array.from({ length: line['upcast'] ? version : 0 }, (_, from) => [
      from,
      (payload: client.Json) => {
        const doc = payload as Line;
        return { ...doc, upcast: [...(doc['upcast'] ?? []), from + 1] };
      },
    ]),
  );
  return client.defineTask(line['task'] ?? line['queue'], {
    queue: line['queue'],
    version,
    upcast,
    ...(line['lease'] != null && { lease: line['lease'] }),
    ...(line['timeout'] != null && { timeout: line['timeout'] }),
    // A producer may put what does not decode, so only workers check.
    ...(line['isWorker'] ? { schema } : {}),
  });
}

const OPTIONS: Record<string, string> = {
  priority: 'priority',
  delay: 'delay',
  at: 'at',
  mode: 'mode',
  ordering_key: 'orderingKey',
  max_attempts: 'maxAttempts',
  headers: 'headers',
  expires_in: 'expiresIn',
  unique: 'unique',
};

function docOptions(line: Line): client.DocOptions {
  const options: Line = line['subject'] == null ? {} : { subject: line['subject'] };
  for (const [name, value] of Object.entries((line['options'] as Line | null | undefined) ?? {})) {
    if (value == null || name === 'version') continue;
    const known = OPTIONS[name];
    if (known === undefined) throw new Unsupported(`option ${name}`);
    options[known] = value;
  }
  return options;
}

const withVersion = (line: Line): Line => ({ ...line, version: line['options']?.version });

// ----------------------------------------------------------------- handlers --

async function script(worker: string, context: client.Context, payload: Line): Promise<unknown> {
  const names = {
    worker,
    queue: context.queue,
    subject: context.subject,
    attempt: context.attempts,
    lease: context.lease,
  };
  const tell = (event: string, more: Line = {}): void => {
    send({ event, ...names, ...more });
  };
  const task = context.task === context.queue ? null : context.task;
  tell('began', { task, version: context.version, payload, headers: context.headers, progress: context.saved });
  let how = 'raised';
  try {
    const result = await operations(context, payload, tell);
    how = 'returned';
    return result;
  } catch (error) {
    if (error === context.signal.reason && context.signal.aborted) how = 'aborted';
    else if (error instanceof client.Outcome) how = 'returned';
    throw error;
  } finally {
    tell('ended', { how });
  }
}

async function operations(
  context: client.Context,
  payload: Line,
  tell: (event: string, more?: Line) => void,
): Promise<unknown> {
  const scripts = payload['scripts'] as Line[][] | null | undefined;
  const all: Line[] = scripts
    ? (scripts[Math.min(context.attempts, scripts.length) - 1] ?? [])
    : ((payload['script'] as Line[] | null | undefined) ?? []);
  const { signal } = context;
  // Waits, and does what the operation says when it is aborted. `true`: the handler ends as if it had finished.
  const wait = async (op: Line, until: Promise<unknown>): Promise<boolean> => {
    let onAbort = (): void => undefined;
    const aborted = new Promise<'aborted'>((resolve) => {
      onAbort = () => {
        resolve('aborted');
      };
      if (signal.aborted) onAbort();
      signal.addEventListener('abort', onAbort);
    });
    const first = await Promise.race([until, aborted]);
    signal.removeEventListener('abort', onAbort);
    if (first !== 'aborted') return false;
    tell('aborted', { reason: (signal.reason as client.StopError).reason });
    switch (op['on_abort'] ?? 'raise') {
      case 'raise':
        throw signal.reason;
      case 'throw':
        throw new ApplicationError('failed while stopping', undefined);
      case 'complete':
        return true;
      default:
        await until;
        return false;
    }
  };
  const follow = async (op: Line): Promise<void> => {
    for (const doc of (op['then'] as Line[] | null | undefined) ?? []) {
      await context.followUp(
        task(withVersion({ queue: context.queue, ...doc })),
        doc['payload'] ?? undefined,
        docOptions(doc),
      );
    }
  };
  for (const op of all) {
    switch (op['op']) {
      case 'sleep':
        if (await wait(op, new Promise((resolve) => setTimeout(resolve, op['seconds'] * 1000)))) {
          return { aborted: (signal.reason as client.StopError).reason };
        }
        break;
      case 'gate':
        if (await wait(op, gate(op['gate']).promise)) return { aborted: (signal.reason as client.StopError).reason };
        break;
      case 'block': {
        const end = performance.now() + op['seconds'] * 1000;
        while (performance.now() < end);
        break;
      }
      case 'step': {
        let ran = false;
        const value = await context.step(op['name'], () => {
          ran = true;
          return op['value'];
        });
        tell('step', { name: op['name'], ran, value });
        break;
      }
      case 'progress':
        await context.progress(op['value']);
        break;
      case 'log':
        context.log.info(op['message']);
        break;
      case 'sql':
        await pool.run((context as client.TxContext<any>).tx, op['sql']);
        break;
      case 'put': {
        const tx = (context as Partial<client.TxContext<any>>).tx;
        const options = { ...docOptions(op), ...(tx !== undefined && { tx }) };
        await fq.put(task(withVersion(op)), op['payload'] ?? undefined, options);
        break;
      }
      case 'hold': {
        const held: (() => void)[] = [];
        for (let at = 0; at < op['connections']; at++) {
          const taking = pool.take();
          const release = await Promise.race([taking, new Promise<null>((resolve) => setTimeout(resolve, 5000, null))]);
          if (release) held.push(release);
          else {
            void taking.then((late) => {
              late();
            });
            break;
          }
        }
        tell('held', { connections: held.length });
        try {
          if (await wait(op, gate(op['gate']).promise)) return { aborted: (signal.reason as client.StopError).reason };
        } finally {
          for (const release of held) release();
        }
        break;
      }
      case 'crash':
        process.kill(process.pid, 'SIGKILL');
        await new Promise(() => undefined);
        break;
      case 'complete':
        await follow(op);
        return op['payload'] == null
          ? (op['result'] ?? undefined)
          : client.complete(op['result'] ?? undefined, { payload: op['payload'] });
      case 'snooze':
        await follow(op);
        return client.snooze(op['delay'] ?? undefined);
      case 'reschedule':
        await follow(op);
        return client.reschedule(op['delay'], { payload: op['payload'] ?? undefined });
      case 'reject':
        await follow(op);
        return client.reject(op['message'] ?? 'rejected', {
          ...(op['delay'] != null && { delay: op['delay'] }),
          details: op['details'] ?? undefined,
        });
      case 'kill':
        await follow(op);
        return client.kill(op['message'] ?? 'killed');
      case 'drop':
        await follow(op);
        return client.drop();
      case 'throw':
        throw new ApplicationError(utf16(op, 'message') ?? '', op['kind'] ?? undefined);
      case 'invalid':
        return client.reschedule('-1 hour');
      default:
        throw new Unsupported(`operation ${String(op['op'])}`);
    }
  }
  return undefined;
}

function utf16(line: Line, name: string): string | undefined {
  const units = line[`${name}_utf16`] as number[] | null | undefined;
  if (!units) return line[name];
  let text = '';
  for (const unit of units) text += String.fromCharCode(unit);
  return text;
}

function retry(rules: Line[]): client.Retry {
  return (error) => {
    const kind = error instanceof ApplicationError ? error.kind : undefined;
    const rule = rules.find((one) => kind !== undefined && one['kind'] === kind);
    switch (rule?.['op']) {
      case 'kill':
        return client.kill(rule['message'] ?? (error as Error).message);
      case 'snooze':
        return client.snooze(rule['delay'] ?? undefined);
      case 'reschedule':
        return client.reschedule(rule['delay']);
      case 'reject':
        return client.reject(
          rule['message'] ?? (error as Error).message,
          rule['delay'] == null ? {} : { delay: rule['delay'] },
        );
      case 'drop':
        return client.drop();
      default:
        return undefined;
    }
  };
}

// ----------------------------------------------------------------- commands --

let shared: { trace: boolean; provider?: BasicTracerProvider; redact: boolean };

const commands: Record<string, (line: Line) => Promise<unknown>> = {
  async hello() {
    const version = (name: string): string =>
      (JSON.parse(readFileSync(new URL(`../../node_modules/${name}/package.json`, import.meta.url), 'utf8')) as Line)[
        'version'
      ];
    const own = JSON.parse(readFileSync(new URL('../../package.json', import.meta.url), 'utf8')) as Line;
    return {
      protocol: 1,
      name: `typescript-${library}`,
      pid: process.pid,
      language: `Node ${process.versions.node}`,
      client: `fetchq ${String(own['version'])}`,
      driver: `${library} ${version(library)}`,
      capabilities: [
        'transactional',
        'rerun',
        'signals',
        'shared',
        'upcast',
        'unique',
        'sync',
        'step',
        'progress',
        'then',
        'redact',
        'middleware',
        'trace',
        'metrics',
        'health',
        'loop',
        'max_bytes',
        'weight',
        'polling',
      ],
    };
  },

  async connect(line) {
    const max = line['pool'] ?? 10;
    pool = library === 'pg' ? pgPool(line['url'], max) : postgresPool(line['url'], max, line['pooled'] ?? false);
    pools.push(pool);
    const use: client.Plugin[] = ((line['middleware'] as string[] | null | undefined) ?? []).map(middleware);
    shared = { trace: line['trace'] ?? false, redact: line['redact'] ?? false };
    if (shared.trace) {
      startTracing();
      shared.provider = new BasicTracerProvider({ spanProcessors: [spans] });
      const tracer = shared.provider.getTracer('conformance');
      const plugins = { link: otel({ tracer }), child: otel({ tracer, parent: 'child' }) };
      const plugin = (): client.Plugin => (traceChild.now ? plugins.child : plugins.link);
      use.unshift({
        put: (docs, next) => plugins.link.put?.(docs, next) ?? next(),
        handle: (context, next) => plugin().handle?.(context, next) ?? next(),
      });
    }
    fq = new client.Fetchq(pool.driver, { use, logger: logger(null) });
    return {};
  },

  async put(line) {
    const options = docOptions(line);
    const payload = line['payload'] ?? undefined;
    const it = task(withVersion(line));
    const call = async (): Promise<unknown> => {
      if (!line['tx']) return fq.put(it, payload, options);
      let result: unknown;
      try {
        await pool.transaction(async (tx, run) => {
          if (line['tx'].sql != null) await run(line['tx'].sql);
          result = await fq.put(it, payload, { ...options, tx });
          if (line['tx'].end === 'rollback') throw new Rollback();
        });
      } catch (error) {
        if (!(error instanceof Rollback)) throw error;
      }
      return result;
    };
    return line['context'] ? active.with(extract(line['context']), call) : call();
  },

  async put_many(line) {
    // The client puts lists of one task. Documents of others are put in the same transaction.
    const docs = line['docs'] as Line[];
    const groups = new Map<string, { line: Line; items: { at: number; item: any }[] }>();
    docs.forEach((doc, at) => {
      const key = JSON.stringify([doc['queue'], doc['task'] ?? null, doc['options']?.version ?? 0]);
      const group = groups.get(key) ?? { line: withVersion(doc), items: [] };
      group.items.push({ at, item: { ...docOptions(doc), payload: doc['payload'] ?? undefined } });
      groups.set(key, group);
    });
    const puts: unknown[] = new Array(docs.length);
    const put = async (tx?: unknown): Promise<void> => {
      for (const { line, items } of groups.values()) {
        const results = await fq.putMany(
          task(line),
          items.map(({ item }) => item),
          tx === undefined ? {} : { tx },
        );
        results.forEach((result, at) => {
          puts[items[at]?.at ?? 0] = result;
        });
      }
    };
    if (groups.size > 1) await pool.transaction(put);
    else await put();
    return { puts };
  },

  async cancel(line) {
    const { wasCancelled, status } = await fq.cancel(task(line), line['subject']);
    return { cancelled: wasCancelled, status };
  },

  async get(line) {
    const doc = await fq.get(task(line), line['subject']);
    return {
      doc: doc
        ? {
            subject: doc.subject,
            status: doc.status,
            attempts: doc.attempts,
            payload: doc.payload,
            result: doc.result,
            last_error: doc.lastError,
          }
        : null,
    };
  },

  wait: (line) => fq.wait(task(line), line['subject'], { timeout: (line['timeout'] ?? 30) * 1000 }),

  async sync(line) {
    const schedules = Object.entries((line['schedules'] as Record<string, Line> | null | undefined) ?? {}).map(
      ([name, one]): [string, client.Schedule] => [
        name,
        {
          task: task(one),
          cron: one['cron'],
          ...(one['payload'] != null && { payload: one['payload'] }),
          ...(one['timezone'] != null && { timezone: one['timezone'] }),
        },
      ],
    );
    await fq.sync({
      owner: `of ${schedules.map(([name]) => name).join(' ')}`,
      ...(line['queues'] != null && { queues: line['queues'] }),
      ...(line['schedules'] != null && { schedules: Object.fromEntries(schedules) }),
    });
    return {};
  },

  async start(line) {
    const name = line['worker'] as string;
    const tasks = line['tasks'] as Line[];
    traceChild.now = tasks.some((one) => one['trace_child']);
    const worker = new client.Worker(fq, {
      logger: logger(name),
      ...(line['name'] != null && { name: line['name'] }),
      ...(line['concurrency'] != null && { concurrency: line['concurrency'] }),
      ...(line['grace'] != null && { grace: line['grace'] * 1000 }),
      ...(line['max_bytes'] != null && { maxBytes: line['max_bytes'] }),
      ...(line['stuck_after'] != null && { stuckAfter: line['stuck_after'] * 1000 }),
      ...(line['polling'] && { polling: true }),
      ...(shared.redact && { redact: (text: string) => text.replaceAll('secret', '***') }),
    });
    for (const one of tasks) {
      const options: Line = { poison: one['poison'] ?? 'reject' };
      if (one['concurrency'] != null) options['concurrency'] = one['concurrency'];
      if (one['weight'] != null) options['weight'] = one['weight'];
      if (one['retry'] != null) options['retry'] = retry(one['retry']);
      const it = task({ ...one, isWorker: true });
      const handler = (payload: Line, context: client.Context): Promise<unknown> => script(name, context, payload);
      if (one['transactional']) worker.handleTx(it, handler, { ...options, ...(one['rerun'] && { reruns: 5 }) });
      else worker.handle(it, handler, options);
    }
    workers.set(name, worker);
    const run = line['signals'] ? worker.run({ signals: ['SIGTERM', 'SIGINT'] }) : worker.run();
    run.catch(() => undefined);
    await worker.start();
    worker.done.then(
      () => {
        send({ event: 'stopped', worker: name, error: null });
      },
      (error: unknown) => {
        send({ event: 'stopped', worker: name, error: failure(error) });
      },
    );
    return {};
  },

  async stop(line) {
    workers
      .get(line['worker'])
      ?.stop(line['now'] ? { now: true } : {})
      .catch(() => undefined);
    return {};
  },

  async health(line) {
    const health = await workers.get(line['worker'])?.health();
    return {
      ok: health?.ok,
      database: health?.database,
      loops: health?.loops,
      heartbeat_age: health?.heartbeatAge ?? null,
    };
  },

  async metrics(line) {
    const all = workers.get(line['worker'])?.metrics();
    return (
      all && {
        settled: all.settled,
        lost: all.lost,
        stuck: all.stuck,
        slots_used: all.slotsUsed,
        slots: all.slots,
        handled: all.handled,
        handler_seconds: all.handlerSeconds,
        heartbeat_lag: all.heartbeatLag,
        calls: all.calls,
      }
    );
  },

  async open(line) {
    gate(line['gate']).open();
    return {};
  },

  async vector(line) {
    switch (line['kind']) {
      case 'message':
        return { output: client.clean(new Error(utf16(line, 'input')).message) };
      case 'interval':
        return { output: client.interval(line['seconds'] * 1000) };
      case 'headers': {
        const it = client.defineTask(line['task'] ?? 'q', { queue: 'q' });
        const doc = await encode(it, {}, line['headers'] == null ? {} : { headers: line['headers'] });
        if (line['context']) {
          startTracing();
          inject(extract(line['context']), doc);
        }
        return { output: doc.headers ?? {} };
      }
      case 'consumer': {
        startTracing();
        const header = line['headers'][client.TASK_HEADER];
        const context = extract(line['headers']);
        const span = trace.getSpanContext(context);
        const carrier: Record<string, string> = {};
        if (propagation.getBaggage(context))
          propagation.inject(
            propagation.setBaggage(ROOT_CONTEXT, propagation.getBaggage(context) ?? propagation.createBaggage()),
            carrier,
          );
        return {
          output: {
            task: typeof header === 'string' ? header : null,
            trace_id: span?.traceId ?? null,
            span_id: span?.spanId ?? null,
            baggage: carrier['baggage'] ?? null,
          },
        };
      }
      case 'retry': {
        const error = Object.assign(new Error('from the server'), {
          code: line['sqlstate'],
          routine: line['routine'] ?? undefined,
        });
        return { output: className(client.classify(error)) };
      }
      default:
        throw new Unsupported(`vector ${String(line['kind'])}`);
    }
  },

  async exit() {
    await Promise.allSettled(Array.from(workers.values(), (worker) => worker.stop({ now: true })));
    await Promise.allSettled(pools.map((one) => one.end()));
    process.exit(0);
  },

  async crash() {
    process.kill(process.pid, 'SIGKILL');
  },
};

const input = createInterface({ input: process.stdin });
input.on('line', (text) => {
  const line = JSON.parse(text) as Line;
  const command = commands[line['do']];
  void (async () => {
    try {
      if (!command) throw new Unsupported(`command ${String(line['do'])}`);
      send({ reply: line['id'], ok: await command(line) });
    } catch (error) {
      send({ reply: line['id'], error: failure(error) });
    }
  })();
});
input.on('close', () => void commands['exit']?.({}));
