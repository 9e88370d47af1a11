import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { SpanKind, SpanStatusCode, context, propagation, trace } from '@opentelemetry/api';
import { AsyncLocalStorageContextManager } from '@opentelemetry/context-async-hooks';
import { CompositePropagator, W3CBaggagePropagator, W3CTraceContextPropagator } from '@opentelemetry/core';
import {
  AggregationTemporality,
  InMemoryMetricExporter,
  MeterProvider,
  PeriodicExportingMetricReader,
} from '@opentelemetry/sdk-metrics';
import { BasicTracerProvider, InMemorySpanExporter, SimpleSpanProcessor } from '@opentelemetry/sdk-trace-base';
import { type PutDoc, defineTask } from '@fetchq/client';
import { otel } from '@fetchq/client/otel';
import { runHandler } from '@fetchq/client/testing';

const spans = new InMemorySpanExporter();
const provider = new BasicTracerProvider({ spanProcessors: [new SimpleSpanProcessor(spans)] });
const tracer = provider.getTracer('test');
const task = defineTask('mail');

before(() => {
  context.setGlobalContextManager(new AsyncLocalStorageContextManager().enable());
  propagation.setGlobalPropagator(
    new CompositePropagator({ propagators: [new W3CTraceContextPropagator(), new W3CBaggagePropagator()] }),
  );
});
after(() => provider.shutdown());

test('a put and its handler are two traces, with a link and the baggage', async () => {
  const plugin = otel({ tracer });
  const doc: PutDoc = { queue: 'mail' };
  const baggage = propagation.createBaggage({ tenant: { value: '7' } });
  await context.with(propagation.setBaggage(context.active(), baggage), () =>
    plugin.put?.([doc], () => Promise.resolve([{ subject: 's', action: 'created' }])),
  );
  assert.match(JSON.stringify(doc.headers), /"traceparent":"00-/);
  let seen: string | undefined;
  const run = (parent: 'link' | 'child', attempts: number) =>
    runHandler(
      task,
      () => {
        seen = propagation.getActiveBaggage()?.getEntry('tenant')?.value;
      },
      {},
      { headers: doc.headers ?? {}, attempts, use: [otel({ tracer, parent })] },
    );
  await run('link', 1);
  await run('child', 1);
  await run('child', 2);
  assert.equal(seen, '7');
  const [send, linked, child, retried] = spans.getFinishedSpans();
  assert.ok(send && linked && child && retried);
  assert.deepEqual(
    [send.name, send.kind, send.attributes['messaging.message.id']],
    ['send mail', SpanKind.PRODUCER, 's'],
  );
  assert.deepEqual([linked.name, linked.kind], ['process mail', SpanKind.CONSUMER]);
  const ids = send.spanContext();
  assert.equal(linked.links[0]?.context.spanId, ids.spanId);
  assert.notEqual(linked.spanContext().traceId, ids.traceId);
  assert.equal(child.parentSpanContext?.spanId, ids.spanId);
  assert.notEqual(retried.spanContext().traceId, ids.traceId);
  spans.reset();
});

test('a failure marks the span, and headers that are no trace are ignored', async () => {
  const headers = { traceparent: 42, baggage: ['x'] };
  await runHandler(
    task,
    () => {
      throw new TypeError('bad');
    },
    {},
    { headers, use: [otel({ tracer })] },
  );
  const [span] = spans.getFinishedSpans();
  assert.equal(span?.status.code, SpanStatusCode.ERROR);
  assert.equal(span.attributes['error.type'], 'TypeError');
  assert.equal(span.links.length, 0);
  assert.equal(trace.getSpan(context.active()), undefined);
});

test('events of a worker become metrics', async () => {
  const exporter = new InMemoryMetricExporter(AggregationTemporality.CUMULATIVE);
  const meters = new MeterProvider({
    readers: [new PeriodicExportingMetricReader({ exporter, exportIntervalMillis: 3_600_000 })],
  });
  const plugin = otel({ tracer, meter: meters.getMeter('test') });
  plugin.event?.({ type: 'settled', queue: 'mail', task: 'mail', action: 'complete', seconds: 0.5 });
  plugin.event?.({ type: 'lost', queue: 'mail', task: 'mail', subject: 's' });
  plugin.event?.({ type: 'call', name: 'docs_next', seconds: 0.1, failed: false });
  plugin.event?.({ type: 'heartbeat', documents: 1, lagSeconds: 0 });
  plugin.event?.({ type: 'slots', used: 1, total: 2 });
  await meters.forceFlush();
  const names = exporter
    .getMetrics()
    .flatMap((all) => all.scopeMetrics.flatMap((scope) => scope.metrics.map((metric) => metric.descriptor.name)));
  for (const name of [
    'fetchq.client.settled',
    'fetchq.client.lost',
    'messaging.process.duration',
    'messaging.client.operation.duration',
  ]) {
    assert.ok(names.includes(name), name);
  }
  await meters.shutdown();
});
