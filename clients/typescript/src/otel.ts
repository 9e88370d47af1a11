import {
  type Context as TraceContext,
  type Meter,
  ROOT_CONTEXT,
  type Span,
  SpanKind,
  SpanStatusCode,
  type Tracer,
  context as active,
  metrics,
  propagation,
  trace,
} from '@opentelemetry/api';
import type { Context } from './context.js';
import { StopError, text } from './errors.js';
import { Outcome } from './outcome.js';
import type { Plugin, WorkerEvent } from './plugin.js';
import type { Json, PutDoc } from './task.js';

/** The semantic conventions of messaging are still in development, so their names stand here alone. */
const ATTRIBUTE = {
  system: 'messaging.system',
  operation: 'messaging.operation.name',
  operationType: 'messaging.operation.type',
  destination: 'messaging.destination.name',
  messageId: 'messaging.message.id',
  batch: 'messaging.batch.message_count',
  client: 'messaging.client.id',
  attempt: 'fetchq.attempt',
  task: 'fetchq.task',
  error: 'error.type',
} as const;
const SYSTEM = 'fetchq';
const NAME = '@fetchq/client';

export interface OtelOptions {
  /** By default that of the global provider. */
  readonly tracer?: Tracer;
  readonly meter?: Meter;
  /**
   * What the span of a handler is to that of its producer: `link` to it, which is the default, or a `child` of it. A
   * retry is always a trace of its own with a link.
   */
  readonly parent?: 'link' | 'child';
}

/**
 * Spans and metrics. A span `send QUEUE` is around each put, whose context travels in the headers `traceparent`,
 * `tracestate` and `baggage`; a span `process QUEUE` is around each handler.
 */
export function otel(options: OtelOptions = {}): Plugin {
  const tracer = (): Tracer => options.tracer ?? trace.getTracer(NAME);
  const meter = options.meter ?? metrics.getMeter(NAME);
  const instruments = {
    settled: meter.createCounter('fetchq.client.settled', { description: 'Documents that were settled, by action' }),
    duration: meter.createHistogram('messaging.process.duration', {
      unit: 's',
      description: 'From lease to settlement',
    }),
    lost: meter.createCounter('fetchq.client.lost', { description: 'Leases that were lost' }),
    stuck: meter.createCounter('fetchq.client.stuck', { description: 'Handlers that did not end when asked' }),
    lag: meter.createHistogram('fetchq.client.heartbeat.lag', { unit: 's', description: 'How late heartbeats were' }),
    calls: meter.createHistogram('messaging.client.operation.duration', {
      unit: 's',
      description: 'Calls of the database',
    }),
    slots: meter.createGauge('fetchq.client.slots.used', { description: 'Documents that are worked on' }),
  };
  return {
    async put(docs, next) {
      const queues = [...new Set(docs.map(({ queue }) => queue))];
      const destination = queues.length === 1 ? (queues[0] ?? '') : 'several';
      const span = tracer().startSpan(`send ${destination}`, {
        kind: SpanKind.PRODUCER,
        attributes: {
          [ATTRIBUTE.system]: SYSTEM,
          [ATTRIBUTE.operation]: 'send',
          [ATTRIBUTE.operationType]: 'send',
          [ATTRIBUTE.destination]: destination,
          ...(docs.length > 1 && { [ATTRIBUTE.batch]: docs.length }),
        },
      });
      const within = trace.setSpan(active.active(), span);
      for (const doc of docs) inject(within, doc);
      try {
        const results = await active.with(within, next);
        const [first] = results;
        if (first && results.length === 1) span.setAttribute(ATTRIBUTE.messageId, first.subject);
        return results;
      } catch (error) {
        failed(span, error);
        throw error;
      } finally {
        span.end();
      }
    },

    async handle(context, next) {
      const producer = extract(context.headers);
      const sender = trace.getSpanContext(producer);
      const isChild = options.parent === 'child' && context.attempts <= 1;
      const span = tracer().startSpan(
        `process ${context.queue}`,
        {
          kind: SpanKind.CONSUMER,
          root: !isChild,
          links: sender && !isChild ? [{ context: sender }] : [],
          attributes: {
            [ATTRIBUTE.system]: SYSTEM,
            [ATTRIBUTE.operation]: 'process',
            [ATTRIBUTE.operationType]: 'process',
            [ATTRIBUTE.destination]: context.queue,
            [ATTRIBUTE.messageId]: context.subject,
            [ATTRIBUTE.client]: context.worker,
            [ATTRIBUTE.attempt]: context.attempts,
            [ATTRIBUTE.task]: context.task,
          },
        },
        producer,
      );
      try {
        // Baggage goes on to what the handler calls, also where the trace is a new one.
        const result = await active.with(trace.setSpan(producer, span), next);
        if (result instanceof Outcome) outcome(span, result);
        return result;
      } catch (error) {
        if (error instanceof Outcome) outcome(span, error);
        // A lease that was lost is no failure of the handler.
        else if (!(error instanceof StopError)) failed(span, error);
        else span.setAttribute(ATTRIBUTE.error, error.reason);
        throw error;
      } finally {
        span.end();
      }
    },

    event(event: WorkerEvent) {
      switch (event.type) {
        case 'settled': {
          const names = {
            [ATTRIBUTE.system]: SYSTEM,
            [ATTRIBUTE.destination]: event.queue,
            [ATTRIBUTE.task]: event.task,
          };
          instruments.settled.add(1, { ...names, action: event.action });
          instruments.duration.record(event.seconds, names);
          break;
        }
        case 'lost':
        case 'stuck':
          instruments[event.type].add(1, { [ATTRIBUTE.destination]: event.queue, [ATTRIBUTE.task]: event.task });
          break;
        case 'heartbeat':
          instruments.lag.record(event.lagSeconds);
          break;
        case 'call':
          instruments.calls.record(event.seconds, { [ATTRIBUTE.operation]: event.name, failed: event.failed });
          break;
        case 'slots':
          instruments.slots.record(event.used);
          break;
      }
    },
  };
}

/** Writes the context of the trace into the headers of a document. Those that it has already are kept. */
export function inject(context: TraceContext, doc: PutDoc): void {
  const carrier: Record<string, string> = {};
  propagation.inject(context, carrier);
  if (Object.keys(carrier).length > 0) doc.headers = { ...carrier, ...doc.headers };
}

/** Reads the context of the trace from the headers of a document. */
export function extract(headers: Context['headers']): TraceContext {
  return propagation.extract(ROOT_CONTEXT, headers, {
    keys: (carrier) => Object.keys(carrier),
    get: (carrier, key) => {
      const value: Json | undefined = carrier[key];
      return typeof value === 'string' ? value : undefined;
    },
  });
}

function failed(span: Span, error: unknown): void {
  if (error instanceof Error) span.recordException(error);
  span.setAttribute(ATTRIBUTE.error, error instanceof Error ? error.name : '_OTHER');
  span.setStatus({ code: SpanStatusCode.ERROR, message: text(error) });
}

function outcome(span: Span, { action, fields }: Outcome): void {
  if (action !== 'reject' && action !== 'kill') return;
  span.setAttribute(ATTRIBUTE.error, action);
  span.setStatus({ code: SpanStatusCode.ERROR, message: text(fields['message'] ?? action) });
}
