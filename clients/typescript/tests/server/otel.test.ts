import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { SpanKind, SpanStatusCode, context, metrics, propagation, trace } from '@opentelemetry/api';
import { AsyncLocalStorageContextManager } from '@opentelemetry/context-async-hooks';
import { CompositePropagator, W3CBaggagePropagator, W3CTraceContextPropagator } from '@opentelemetry/core';
import {
  AggregationTemporality,
  InMemoryMetricExporter,
  MeterProvider,
  PeriodicExportingMetricReader,
} from '@opentelemetry/sdk-metrics';
import { BasicTracerProvider, InMemorySpanExporter, SimpleSpanProcessor } from '@opentelemetry/sdk-trace-base';
import { Fetchq, Worker, defineTask, kill } from '@fetchq/client';
import { otel } from '@fetchq/client/otel';
import { drain } from '@fetchq/client/testing';
import { open, setup } from '../support.js';

const spans = new InMemorySpanExporter();
const exporter = new InMemoryMetricExporter(AggregationTemporality.CUMULATIVE);
const meters = new MeterProvider({
  readers: [new PeriodicExportingMetricReader({ exporter, exportIntervalMillis: 3_600_000 })],
});
const s = setup('pg');
const { driver, end } = open('pg');

// As an application does it: the plugin is given nothing, and finds what is registered.
before(() => {
  context.setGlobalContextManager(new AsyncLocalStorageContextManager().enable());
  propagation.setGlobalPropagator(
    new CompositePropagator({ propagators: [new W3CTraceContextPropagator(), new W3CBaggagePropagator()] }),
  );
  trace.setGlobalTracerProvider(new BasicTracerProvider({ spanProcessors: [new SimpleSpanProcessor(spans)] }));
  metrics.setGlobalMeterProvider(meters);
});
after(async () => {
  await Promise.all([end(), s.end(), meters.shutdown()]);
});

test('a document carries the trace of its producer through the server to its handler, and the worker is measured', async () => {
  const fq = new Fetchq(driver, { use: [otel()], logger: s.logger });
  const task = defineTask<{ fail?: boolean }>(await s.queue());
  const tracer = trace.getTracer('test');
  const ids = await tracer.startActiveSpan('request', async (request) => {
    const baggage = propagation.createBaggage({ tenant: { value: '7' } });
    await context.with(propagation.setBaggage(context.active(), baggage), async () => {
      await fq.put(task, {}, { subject: 'good', headers: { own: 1 } });
      await fq.put(task, { fail: true }, { subject: 'bad' });
    });
    request.end();
    return request.spanContext();
  });
  const { headers } = (await fq.get(task, 'good')) ?? {};
  assert.equal(headers?.['own'], 1);
  assert.equal(headers['baggage'], 'tenant=7');
  const seen: unknown[] = [];
  const worker = new Worker(fq).handle(task, ({ fail }) => {
    seen.push(propagation.getActiveBaggage()?.getEntry('tenant')?.value);
    tracer.startActiveSpan('inner', (inner) => inner.end());
    if (fail) throw kill('given up');
    return { done: true };
  });
  await drain(fq, worker);
  assert.deepEqual(seen, ['7', '7']);
  const all = spans.getFinishedSpans();
  const of = (name: string, subject: string) => {
    const found = all.find(
      (span) => span.name === `${name} ${task.queue}` && span.attributes['messaging.message.id'] === subject,
    );
    assert.ok(found, `${name} ${subject}`);
    return found;
  };
  const [send, good, bad] = [of('send', 'good'), of('process', 'good'), of('process', 'bad')];
  assert.deepEqual([send.kind, good.kind], [SpanKind.PRODUCER, SpanKind.CONSUMER]);
  assert.equal(send.parentSpanContext?.spanId, ids.spanId);
  assert.equal(headers['traceparent'], `00-${send.spanContext().traceId}-${send.spanContext().spanId}-01`);
  assert.equal(good.links[0]?.context.spanId, send.spanContext().spanId);
  assert.notEqual(good.spanContext().traceId, ids.traceId);
  assert.ok(all.some((span) => span.name === 'inner' && span.parentSpanContext?.spanId === good.spanContext().spanId));
  assert.equal(good.attributes['messaging.system'], 'fetchq');
  assert.deepEqual([good.status.code, bad.status.code], [SpanStatusCode.UNSET, SpanStatusCode.ERROR]);
  await meters.forceFlush();
  const points = new Map(
    exporter
      .getMetrics()
      .flatMap((one) =>
        one.scopeMetrics.flatMap((scope) =>
          scope.metrics.map(
            (metric) =>
              [metric.descriptor.name, metric.dataPoints as readonly { attributes: object; value: unknown }[]] as const,
          ),
        ),
      ),
  );
  const settled = (points.get('fetchq.client.settled') ?? []).map(({ attributes, value }) => [
    (attributes as { action?: string }).action,
    value,
  ]);
  assert.deepEqual(settled.sort(), [
    ['complete', 1],
    ['kill', 1],
  ]);
  for (const name of ['messaging.process.duration', 'messaging.client.operation.duration', 'fetchq.client.slots.used'])
    assert.ok(points.has(name), name);
});
