// Each screen is opened in Chromium, each action is done there, and its effect is looked up by SQL.
import assert from 'node:assert/strict';
import { after, afterEach, before, test } from 'node:test';
import { check, connect, createDatabase, person, startBrowser, startConsole, until, urlOf, value } from './support.js';

const HOSTILE = '<img src=x onerror=alert(1)>"\'&<script>alert(2)</script>';
let db, browser, server, one, load;
let isLoading = true;

/** A worker, and a producer that keeps it busy: the screens are tested under load. */
async function work() {
  const client = await connect('console_test');
  for (let n = 0; isLoading; n += 1) {
    await client.query("select fetchq.doc_append('busy', jsonb_build_object('n', $1::int)) from generate_series(1, 20)", [n]);
    const { rows } = await client.query("select subject, lease from fetchq.doc_lease('busy', 15, worker => 'loader')");
    const settlements = rows.map(({ subject, lease }, index) =>
      (index % 5 ? { subject, lease, action: 'complete' } : { subject, lease, action: 'reject', message: 'no luck', delay: '1 hour' }));
    await client.query("select fetchq.docs_settle('busy', $1)", [JSON.stringify(settlements)]);
    await new Promise((wake) => setTimeout(wake, 100));
  }
  await client.end();
}

before(async () => {
  db = await createDatabase('console_test');
  await db.query(`
    select fetchq.queue_create('busy', '{"history": {"completed": "0"}}'), fetchq.queue_create('mail_dead'),
           fetchq.queue_create('mail', '{"dead_letter": "mail_dead"}'), fetchq.queue_create('jobs'), fetchq.queue_create('other');
    select fetchq.doc_put('jobs', 'job-' || lpad(i::text, 3, '0'), jsonb_build_object('n', i)) from generate_series(1, 120) i`);
  await db.query('select fetchq.doc_put($1, $2, $3, headers => $3)', ['jobs', HOSTILE, JSON.stringify({ text: HOSTILE })]);
  load = work();
  server = await startConsole([urlOf('console_test')], '--allow-actions');
  browser = await startBrowser();
});

after(async () => {
  isLoading = false;
  await load;
  await browser?.close();
  assert.equal(await server?.stop(), 0, 'the console ends when it is asked to');
  await db?.end();
});

afterEach(async () => {
  await one?.close();
  one = undefined;
});

const go = async (path, options) => {
  one ??= await person(browser, options);
  await one.page.goto(`${server.address}/db/console_test${path}`);
  await check(one);
  return one.page;
};

const press = (page, name) => page.getByRole('button', { name, exact: true }).first().click();
const message = (page) => page.locator('main > .notice').first().innerText();

test('the overview shows all queues, and their numbers change without a reload', async () => {
  const page = await go('');
  assert.deepEqual(await page.locator('[data-region=queues] tbody th').allInnerTexts(), ['busy', 'jobs', 'mail', 'mail_dead dead letters', 'other']);
  assert.match(await page.locator('main').innerText(), /select \* from fetchq.queue_stats\(\)/);
  const ready = page.getByRole('row', { name: /^other/ }).locator('td').first();
  assert.equal(await ready.innerText(), '0');
  await db.query("select fetchq.doc_put('other', 'x')");
  await until('the number of ready documents', async () => await ready.innerText() === '1');
  await until('a line and a rate', async () => /polyline/.test(await page.locator('svg.spark').first().innerHTML()));
  await until('the rate', async () => !/^0\/s$/.test(await page.getByRole('row', { name: /^busy/ }).locator('td').nth(4).innerText()));
  await check(one);
});

test('the overview is searched and sorted', async () => {
  const page = await go('?q=MAIL');
  assert.deepEqual(await page.locator('tbody th').allInnerTexts(), ['mail', 'mail_dead dead letters']);
  await page.goto(`${server.address}/db/console_test?sort=ready`);
  const numbers = (await page.locator('[data-region=queues] tbody tr td:nth-child(2)').allInnerTexts()).map((text) => Number(text.replaceAll(',', '')));
  assert.deepEqual(numbers, numbers.toSorted((a, b) => b - a));
  await page.getByLabel('Name contains').fill('nothing like that');
  await press(page, 'Search');
  assert.match(await page.locator('[data-region=queues]').innerText(), /No queue has a name/);
  await check(one);
});

test('a problem is shown first, with what to do', async () => {
  const holder = await connect('console_test');
  await holder.query("select fetchq.schedule_create('broken', 'other', '* * * * *', timezone => 'UTC')");
  await holder.query('create role console_gone');
  await holder.query('grant usage on schema fetchq, fetchq_data to console_gone');
  await holder.query("select fetchq.queue_grant('other', 'console_gone', 'producer')");
  await holder.query("update fetchq.schedules set made_by = 'console_gone', due_at = now() - interval '1 hour', next_tick = now() - interval '1 hour' where name = 'broken'");
  await holder.query("select fetchq.queue_revoke('other', 'console_gone', 'producer')");
  await holder.query('select fetchq.schedule_run()').catch(() => {});
  const hinted = await value(holder, 'select count(*) from fetchq.status() where hint is not null');
  assert.ok(Number(hinted) > 0, 'something is wrong');
  const page = await go('');
  assert.match(await page.locator('.problems').innerText(), /What to do:/);
  await go('/schedules');
  assert.match(await page.locator('main').innerText(), /failing/);
  await holder.query("select fetchq.schedule_drop('broken'); revoke usage on schema fetchq, fetchq_data from console_gone; drop role console_gone");
  await holder.end();
});

test('a queue has charts, which grow by themselves', async () => {
  const page = await go('/queues/busy');
  await until('three charts', async () => await page.locator('canvas').count() === 3);
  assert.match(await page.locator('main').innerText(), /From the memory of the console/);
  const answer = await page.request.get(`${server.address}/db/console_test/queues/busy/series`);
  assert.ok((await answer.json()).length > 0);
  const before = await page.locator('[data-region=numbers]').innerText();
  await until('other numbers', async () => await page.locator('[data-region=numbers]').innerText() !== before);
  await check(one);
});

test('a queue has charts of longer times, from the snapshots that the server stores', async () => {
  await db.query('truncate fetchq_data.jobs__metrics');
  const page = await go('/queues/jobs?span=day');
  assert.match(await page.locator('main').innerText(), /stored no snapshots of that time.*last minutes/);
  assert.equal(await page.locator('canvas').count(), 3);
  // Two days with a document every 30 seconds, then a reset.
  await db.query(`insert into fetchq_data.jobs__metrics (created_at, metric, value)
    select now() - interval '3 days' + i * interval '5 minutes', m.metric, case m.metric when 'pnd' then i % 7 when 'act' then 2 else i % 577 * 10 end
    from generate_series(0, 863) i, unnest('{pnd,act,pln,ent,pkd,suc,fai}'::text[]) m (metric)`);
  await page.getByRole('link', { name: 'Week' }).click();
  await until('two charts', async () => await page.locator('canvas').count() === 2);
  await check(one);
  assert.match(await page.locator('main').innerText(), /From 7\d snapshots that the server has stored/);
  const points = JSON.parse(await page.locator('.charts').getAttribute('data-points'));
  assert.equal(points[0].pushed, null);
  assert.ok(points.slice(1, 40).every((point) => Math.abs(point.pushed - 10 / 300) < 1e-6), 'the mean rate of each hour');
  assert.ok(points.every((point) => point.pushed === null || point.pushed >= 0));
  assert.ok(points.every((point) => point.active === 2));
  await page.getByRole('link', { name: 'Day', exact: true }).click();
  assert.match(await page.locator('main').innerText(), /From 2[78]\d snapshots/);
  await page.getByRole('link', { name: 'Last minutes' }).click();
  await until('three charts', async () => await page.locator('canvas').count() === 3);
  await check(one);
});

test('updates can be paused', async () => {
  const page = await go('/queues/busy');
  await press(page, 'Pause updates');
  const before = await page.locator('[data-region=numbers]').innerText();
  await new Promise((wake) => setTimeout(wake, 2500));
  assert.equal(await page.locator('[data-region=numbers]').innerText(), before);
  await press(page, 'Resume updates');
  await until('other numbers', async () => await page.locator('[data-region=numbers]').innerText() !== before);
});

test('a queue is paused and resumed, and the second of two people learns that the first was faster', async () => {
  const page = await go('/queues/jobs');
  const two = await person(browser);
  await two.page.goto(page.url());
  await press(page, 'Pause');
  assert.match(await message(page), /Queue jobs is paused/);
  assert.equal(await value(db, "select is_paused from fetchq.queue_stats('jobs')"), true);
  await check(one);
  await press(two.page, 'Pause');
  assert.match(await message(two.page), /was paused already/);
  await press(two.page, 'Resume');
  assert.equal(await value(db, "select is_paused from fetchq.queue_stats('jobs')"), false);
  await check(two);
  await two.close();
});

test('two people who change different settings do not undo one another', async () => {
  const page = await go('/queues/jobs/settings');
  const two = await person(browser);
  await two.page.goto(page.url());
  await page.getByLabel('max_attempts').fill('9');
  await press(page, 'Change settings');
  assert.match(await message(page), /Changed in queue jobs: max_attempts/);
  await two.page.getByLabel('retry.base').fill('10 s');
  await two.page.getByLabel('ordered').fill('true');
  await press(two.page, 'Change settings');
  const settings = await value(db, "select fetchq.queue_settings('jobs')");
  assert.deepEqual([settings.max_attempts, settings.retry.base, settings.ordered], [9, '00:00:10', true]);
  await two.page.getByLabel('ordered').fill('');
  await two.page.getByLabel('retry.base').fill('not a time');
  await press(two.page, 'Change settings');
  assert.match(await message(two.page), /retry|base/);
  assert.equal((await value(db, "select fetchq.queue_settings('jobs')")).ordered, true, 'all of them or none');
  await db.query(`select fetchq.queue_configure('jobs', '{"ordered": false}')`);
  await check(two);
  await two.close();
});

test('documents are searched, and paged by key', async () => {
  const page = await go('/queues/jobs/documents?subject=job-%25');
  assert.equal(await page.locator('tbody tr').count(), 50);
  await page.getByRole('link', { name: 'Next page' }).click();
  await page.getByRole('link', { name: 'Next page' }).click();
  assert.equal(await page.locator('tbody tr').count(), 20);
  assert.equal(await page.getByRole('link', { name: 'Next page' }).count(), 0);
  await page.getByLabel('Subject').fill('job-00_');
  await page.getByLabel('Status').selectOption('pending');
  await press(page, 'Search');
  assert.equal(await page.locator('tbody tr').count(), 9);
  await page.getByText('More conditions').click();
  await page.getByLabel('Payload contains').fill('{"n": 7}');
  await press(page, 'Search');
  assert.deepEqual(await page.locator('tbody th').allInnerTexts(), ['job-007']);
  await page.getByLabel('Payload contains').fill('{');
  await press(page, 'Search');
  assert.match(await page.getByRole('alert').innerText(), /has to be JSON/);
  await check(one);
  await page.getByLabel('Payload contains').fill('');
  await page.getByLabel('Created longer ago').fill('a while');
  await press(page, 'Search');
  assert.match(await page.getByRole('alert').innerText(), /older_than/);
  await check(one);
});

test('a search that would read too much shows what it has found, and goes on from there', async () => {
  await db.query(`select fetchq.queue_create('large');
    select count(*) from fetchq.doc_append_many('large', array_fill('{}'::jsonb, array[100100]));
    select fetchq.doc_put('large', 'a first one'); select fetchq.doc_put('large', 'z ''last'' one');
    select fetchq.docs_kill('large', '{"subject": "a first one"}'); select fetchq.docs_kill('large', '{"subject_like": "z %"}')`);
  const page = await go('/queues/large/documents?status=killed');
  assert.deepEqual(await page.locator('tbody th').allInnerTexts(), ['a first one']);
  assert.match(await page.locator('.notice.warn').innerText(), /100000 documents of queue "large" were read, 1 of them match/);
  await page.getByRole('link', { name: 'Go on' }).click();
  await check(one);
  assert.deepEqual(await page.locator('tbody th').allInnerTexts(), ["z 'last' one"]);
  assert.equal(await page.getByRole('link', { name: 'Go on' }).count(), 0);
  await page.getByRole('link', { name: 'First page' }).click();
  assert.equal(await page.getByRole('link', { name: 'Go on' }).count(), 1);
  await db.query("select fetchq.queue_drop('large')");
});

test('a hostile subject and payload are text on every screen', async () => {
  const page = await go('/queues/jobs/documents');
  const link = page.getByRole('link', { name: HOSTILE });
  await link.click();
  await check(one);
  assert.match(await page.locator('main h2').first().innerText(), /<img src=x onerror=alert\(1\)>/);
  assert.ok((await page.locator('pre').first().innerText()).includes('<script>alert(2)'));
  assert.equal(await page.locator('img, main script').count(), 0);
  await db.query("select fetchq.doc_lease('jobs', 1, worker => $1)", [HOSTILE]);
  await go('/workers');
  assert.ok((await page.locator('main').innerText()).includes(HOSTILE));
  await press(page, 'Stop…');
  await check(one);
  await db.query('select fetchq.worker_release($1)', [HOSTILE]);
});

const doc = (name) => value(db, "select to_jsonb(d) from fetchq.doc_get('jobs', $1) d", [name]);
const open = (name) => go(`/queues/jobs/document?subject=${encodeURIComponent(name)}`);

test('priority and time of a document are changed, and its payload stays', async () => {
  await db.query(`select fetchq.doc_put('jobs', '50%_off', '{"a": 1}', headers => '{"h": 2}')`);
  const page = await open('50%_off');
  await page.getByLabel('Priority').fill('7');
  await press(page, 'Set priority');
  assert.match(await message(page), /has the new priority/);
  await page.getByLabel('Due (').fill('2 hours');
  await press(page, 'Set time');
  assert.match(await message(page), /has the new time/);
  const { priority, status, payload, headers } = await doc('50%_off');
  assert.deepEqual({ priority, status, payload, headers }, { priority: 7, status: 'planned', payload: { a: 1 }, headers: { h: 2 } });
  await page.getByLabel('Due (').fill('2100-01-01 00:00 UTC');
  await press(page, 'Set time');
  assert.match((await doc('50%_off')).due_at, /^2100-01-01/);
  await db.query("select fetchq.queue_configure('jobs', '{\"ordered\": true}')");
  await page.getByLabel('Due (').fill('3 hours');
  await press(page, 'Set time');
  assert.match(await message(page), /has the new time/, 'in an ordered queue, too');
  await db.query("select fetchq.queue_configure('jobs', '{\"ordered\": false}')");
  await page.getByLabel('Due (').fill('soon');
  await press(page, 'Set time');
  assert.match(await page.getByRole('alert').innerText(), /interval/);
  await press(page, 'Retry now');
  assert.equal((await doc('50%_off')).status, 'pending');
  await check(one);
});

test('a document is released, cancelled and revived', async () => {
  await db.query(`select fetchq.doc_put('jobs', 'alone', priority => 1000)`);
  await db.query("select fetchq.doc_lease('jobs', 1, worker => 'me')");
  const page = await open('alone');
  assert.match(await page.locator('main').innerText(), /Worker\s+me/);
  await press(page, 'Release');
  assert.match(await message(page), /given back/);
  assert.deepEqual([(await doc('alone')).status, (await doc('alone')).attempts], ['pending', 0]);
  await press(page, 'Cancel…');
  await check(one);
  assert.equal((await doc('alone')).status, 'pending', 'a question changes nothing');
  await press(page, 'Cancel the document');
  assert.match(await message(page), /was pending, and is cancelled/);
  assert.equal((await doc('alone')).status, 'killed');
  await press(page, 'Revive');
  assert.match((await doc('alone')).status, /planned|pending/);
  await check(one);
});

test('a document that somebody else settled meanwhile stays as it is', async () => {
  await db.query(`select fetchq.doc_put('jobs', 'raced', priority => 2000)`);
  await db.query("select fetchq.doc_pick('jobs', 1)");
  const page = await open('raced');
  await db.query("select fetchq.doc_complete('jobs', 'raced')");
  await press(page, 'Release');
  assert.match(await page.getByRole('alert').innerText(), /not active|completed/);
  assert.equal((await doc('raced')).status, 'completed');
});

test('the failed attempts of a document are shown', async () => {
  await db.query(`select fetchq.doc_put('jobs', 'failing', priority => 3000)`);
  await db.query("select fetchq.doc_pick('jobs', 1)");
  await db.query("select fetchq.doc_reject('jobs', 'failing', $1, details => $2)", [`boom ${HOSTILE}`, JSON.stringify({ HOSTILE })]);
  const page = await open('failing');
  assert.ok((await page.locator('section', { hasText: 'Failed attempts' }).innerText()).includes(`boom ${HOSTILE}`));
});

test('the page of a document says why it does not run, and what to do', async () => {
  await db.query(`select fetchq.doc_put('jobs', 'why', delay => '1 hour')`);
  const why = (page) => page.locator('section', { hasText: 'Why it does not run' });
  const page = await open('why');
  const text = await why(page).innerText();
  assert.match(text, /not_due\s+It is not due yet\.[\s\S]*fetchq\.doc_explain\('jobs', 'why'\)/);
  // What the page says helps.
  await db.query(text.match(/Run it now: ([^\t\n]*)/)[1]);
  assert.doesNotMatch(await why(await open('why')).innerText(), /not_due/);
  await check(one);
});

test('each bulk action is counted first, changes nothing until it is confirmed, and then what it said', async () => {
  const affected = async (status) => Number(await value(db, "select count(*) from fetchq.docs_list('jobs', jsonb_build_object('subject_like', 'bulk-%', 'status', $1::text), 1000)", [status]));
  const act = async (label, fields, question) => {
    const page = await go('/queues/jobs/documents?subject=bulk-%25');
    await page.getByLabel('Action').selectOption(label);
    for (const [name, text] of Object.entries(fields)) await page.getByLabel(name, { exact: true }).fill(text);
    await press(page, 'Count…');
    assert.match(await page.locator('main').innerText(), question);
    await check(one);
    return async (result) => {
      await page.locator('button.danger').click();
      assert.match(await message(page), result);
      await check(one);
    };
  };
  await db.query("select fetchq.doc_put('jobs', 'bulk-' || i, delay => '1 hour') from generate_series(1, 6) i");
  let confirm = await act('Set time', { 'Due (set time)': '2100-01-01 00:00 UTC', 'At most': '2' }, /2 documents of queue jobs would be given the time 2100-01-01.*may be more/s);
  assert.doesNotMatch((await doc('bulk-1')).due_at, /^2100/);
  await confirm(/2 documents were given the time/);
  assert.equal(await value(db, "select count(*)::int from fetchq.docs_list('jobs', '{\"subject_like\": \"bulk-%\"}') where due_at = '2100-01-01 00:00 UTC'"), 2);
  confirm = await act('Set time', { 'Due (set time)': '1 hour' }, /6 documents of queue jobs would be given the time 1 hour/);
  await confirm(/6 documents were given the time/);
  confirm = await act('Set priority', { 'Priority (set priority)': '4' }, /6 documents of queue jobs would be given priority 4/);
  assert.equal((await doc('bulk-1')).priority, 0);
  await confirm(/6 documents were given priority 4/);
  assert.equal((await doc('bulk-1')).priority, 4);
  confirm = await act('Retry', { 'At most': '2' }, /2 documents of queue jobs would be retried.*may be more/s);
  assert.equal(await affected('planned'), 6);
  await confirm(/2 documents were retried/);
  assert.equal(await affected('pending'), 2);
  confirm = await act('Kill', {}, /6 documents of queue jobs would be killed/);
  // Another person is faster with one of them.
  await db.query("select fetchq.docs_drop('jobs', '{\"subject\": \"bulk-6\"}')");
  await confirm(/5 documents were killed/);
  assert.equal(await affected('killed'), 5);
  confirm = await act('Move to another queue', { 'Target queue (move)': 'other', 'At most': '3' }, /3 documents of queue jobs would be moved to other/);
  await confirm(/3 documents were moved to other/);
  assert.equal(await affected('killed'), 2);
  confirm = await act('Drop', {}, /2 documents of queue jobs would be dropped/);
  assert.equal(await affected('killed'), 2);
  await confirm(/2 documents were dropped/);
  assert.equal(await affected('killed'), 0);
  const page = await go('/queues/jobs/documents?subject=bulk-%25');
  await press(page, 'Count…');
  assert.match(await page.getByRole('alert').innerText(), /No document would be retried/);
});

test('dead letters are listed and redriven', async () => {
  await db.query("select fetchq.doc_put('mail', 'lost')");
  await db.query("select fetchq.doc_pick('mail', 1)");
  await db.query("select fetchq.doc_kill('mail', 'lost', message => 'bad')");
  const page = await go('/dead-letters');
  const row = page.getByRole('row', { name: /^mail / });
  assert.match(await row.innerText(), /mail_dead/);
  await row.getByRole('button', { name: 'Redrive…' }).click();
  await check(one);
  assert.equal(await value(db, "select count(*)::int from fetchq.docs_list('mail')"), 0);
  assert.match(await page.locator('main').innerText(), /1 document that failed would come back/);
  await press(page, 'Redrive 1 document');
  assert.match(await message(page), /1 document came back/);
  assert.equal(await value(db, "select status from fetchq.doc_get('mail', 'lost')"), 'pending');
  await check(one);
  await go('/queues/mail');
  await press(page, 'Redrive…');
  assert.match(await page.getByRole('alert').innerText(), /No document came back/, 'there is nothing to ask for');
  await db.query("update fetchq.queues set dead_letter = 'gone' where name = 'other'");
  await go('/dead-letters');
  assert.match(await page.getByRole('row', { name: /^other/ }).innerText(), /gone\s+missing/);
  await db.query("update fetchq.queues set dead_letter = null where name = 'other'");
});

test('a worker is asked to stop, and its documents are released', async () => {
  await db.query("select fetchq.doc_lease('jobs', 3, worker => 'stuck')");
  const page = await go('/workers');
  const row = () => page.getByRole('row', { name: /^stuck/ });
  await row().getByRole('button', { name: 'Stop…' }).click();
  await check(one);
  await press(page, 'Ask it to stop');
  assert.equal(await value(db, "select is_asked_to_stop from fetchq.workers where name = 'stuck'"), true);
  assert.match(await row().innerText(), /asked to stop/);
  await row().getByRole('button', { name: 'Release…' }).click();
  await press(page, 'Release its documents');
  assert.match(await message(page), /gave back 3 documents/);
  assert.equal(await value(db, "select count(*)::int from fetchq.lease_list() where worker = 'stuck'"), 0);
  await check(one);
});

test('the leases of a queue have pages, and the workers are those of the queue', async () => {
  await db.query("select fetchq.queue_create('leased'); select fetchq.doc_put('leased', 'd-' || lpad(i::text, 3, '0')) from generate_series(1, 250) i");
  await db.query("select fetchq.doc_lease('leased', 250, worker => 'many')");
  const page = await go('/workers?queue=leased');
  const leases = page.getByRole('region', { name: 'Table of the leases' }).locator('tbody th');
  assert.deepEqual(await page.getByRole('region', { name: 'Table of the workers' }).locator('tbody th').allInnerTexts(), ['many']);
  assert.equal(await leases.count(), 200);
  await page.getByRole('link', { name: 'Next page' }).click();
  await check(one);
  assert.deepEqual([await leases.count(), await leases.first().innerText()], [50, 'd-201']);
  await page.getByRole('link', { name: 'First page' }).click();
  assert.equal(await leases.first().innerText(), 'd-001');
  await db.query("select fetchq.worker_release('many'); select fetchq.queue_drop('leased')");
});

test('the history of a queue is searched, and has pages', async () => {
  await db.query(`select fetchq.queue_create('kept', '{"history": {"completed": "1 day", "dropped": "1 day"}}');
    select fetchq.doc_put('kept', 'k-' || lpad(i::text, 3, '0')) from generate_series(1, 70) i`);
  await db.query("select fetchq.doc_drop('kept', subject, lease) from fetchq.doc_lease('kept', 60, worker => 'keeper')");
  await db.query("select fetchq.doc_put('kept', $1, priority => 10)", [HOSTILE]);
  await db.query("select fetchq.doc_drop('kept', subject, lease) from fetchq.doc_lease('kept', 1)");
  const page = await go('/queues/kept/history');
  const subjects = page.locator('tbody th');
  assert.deepEqual([await subjects.count(), await subjects.first().innerText()], [50, HOSTILE]);
  const first = await subjects.allInnerTexts();
  await page.getByRole('link', { name: 'Next page' }).click();
  await check(one);
  const second = await subjects.allInnerTexts();
  assert.equal(new Set([...first, ...second]).size, 61, 'each of them once');
  await page.getByLabel('Subject').fill('k-00%');
  await page.getByLabel('Worker').fill('keeper');
  await page.getByLabel('Outcome').selectOption('dropped');
  await press(page, 'Search');
  assert.equal(await subjects.count(), 9);
  await page.getByLabel('Outcome').selectOption('completed');
  await press(page, 'Search');
  assert.match(await page.locator('.notice').innerText(), /No entry matches/);
  await check(one);
  await page.getByLabel('Settled since').fill('soon');
  await press(page, 'Search');
  assert.match(await page.getByRole('alert').innerText(), /settled_since/);
  await check(one);
  await go('/queues/kept/history?subject=k-001');
  await page.getByRole('link', { name: 'k-001' }).click();
  assert.match(await page.locator('main').innerText(), /has left the queue/);
  await check(one);
});

test('relays are shown where there are some', async () => {
  const page = await go('/workers');
  assert.equal(await page.locator('#relays').count(), 0);
  const about = { source: 'shop.example.com:5432/shop', waiting: 7, lag: 1.5, refused: 2, blocked: { mail: 'queue "mail" does not exist' } };
  await db.query("select fetchq.queue_create('fetchq_relay')");
  const put = (subject, relay, at) => db.query(
    "select fetchq.doc_put('fetchq_relay', $1, $2, 'infinity')",
    [subject, JSON.stringify({ epoch: 'e', relay, batch: { ids: [], sum: '0' }, carried: 12345, about, at })],
  );
  await put('one', 'host-<a>', new Date().toISOString());
  await put('two', 'host-b', '2020-01-01T00:00:00Z');
  await put('three', null, '2020-01-01T00:00:00Z');
  await db.query("select fetchq.doc_put('fetchq_relay', 'strange', '[1]', 'infinity')");
  await go('/workers');
  const rows = await page.locator('#relays tbody tr').allInnerTexts();
  assert.equal(rows.length, 4);
  assert.match(rows.join('\n'), /host-<a>\s+12,345\s+7\s/);
  assert.equal(rows.filter((row) => /silent/.test(row)).length, 1);
  assert.equal(rows.filter((row) => /ended/.test(row)).length, 2);
  await check(one);
  await page.locator('#relays tbody a').first().click();
  await check(one);
  await db.query("select fetchq.queue_drop('fetchq_relay')");
});

test('a schedule is previewed, paused, resumed and run now', async () => {
  await db.query(`select fetchq.schedule_create('nightly', 'other', '30 2 * * *', '{"kind": "report"}', priority => 3, headers => '{"x": 1}')`);
  const page = await go('/schedules');
  await page.getByRole('link', { name: '30 2 * * *' }).click();
  assert.equal(await page.locator('#preview li').count(), 10);
  await check(one);
  await page.getByLabel('Cron expression').fill('61 * * * *');
  await press(page, 'Show the next ticks');
  assert.match(await page.getByRole('alert').innerText(), /61|minute/);
  await check(one);
  await press(page, 'Pause');
  assert.equal(await value(db, "select state from fetchq.schedule_list() where name = 'nightly'"), 'paused');
  await press(page, 'Resume');
  assert.equal(await value(db, "select state from fetchq.schedule_list() where name = 'nightly'"), 'active');
  await press(page, 'Run now…');
  await check(one);
  await press(page, 'Run it now');
  assert.equal(await value(db, "select ticks::int from fetchq.schedule_list() where name = 'nightly'"), 0, 'its own ticks stay as they are');
  const subject = /added the document (.+)\./.exec(await message(page))[1];
  const { payload, priority, headers } = await value(db, "select to_jsonb(d) from fetchq.doc_get('other', $1) d", [subject]);
  assert.deepEqual({ payload, priority, headers }, { payload: { kind: 'report' }, priority: 3, headers: { x: 1 } });
});

test('maintenance shows all parts, the floors and the installation', async () => {
  const page = await go('/maintenance');
  const text = await page.locator('main').innerText();
  for (const part of ['horizon', 'counter log', 'Floor misses', 'Background worker']) assert.ok(text.includes(part), part);
});

test('every screen fits a phone, and can be read in the dark', async () => {
  const options = { viewport: { width: 360, height: 740 }, colorScheme: 'dark', hasTouch: true };
  for (const path of ['', '/queues/busy', '/queues/jobs/documents', '/queues/jobs/history', '/queues/jobs/settings', '/queues/jobs/document?subject=job-001', '/dead-letters', '/workers', '/schedules', '/maintenance']) {
    await go(path, options);
  }
});

test('the keyboard reaches the content and the rows, and keeps its place while numbers change', async () => {
  const page = await go('');
  await page.keyboard.press('Tab');
  assert.equal(await page.evaluate(() => document.activeElement.className), 'skip');
  await page.keyboard.press('Enter');
  assert.equal(await page.evaluate(() => document.activeElement.id), 'main');
  await page.locator('#queue-busy').focus();
  const before = await page.locator('[data-region=queues]').innerText();
  await until('other numbers', async () => await page.locator('[data-region=queues]').innerText() !== before);
  assert.equal(await page.evaluate(() => document.activeElement.id), 'queue-busy');
  await page.keyboard.press('Enter');
  await page.waitForURL(/queues\/busy/);
});

test('thirty open pages cost the server one read a second', async () => {
  await db.query("alter database console_test set track_functions = 'all'");
  const counted = await startConsole([urlOf('console_test')]);
  const control = new AbortController();
  const pages = [];
  for (let n = 0; n < 30; n += 1) {
    const answer = await fetch(`${counted.address}/db/console_test/live?view=overview`, { signal: control.signal });
    pages.push(answer.body.getReader());
  }
  const calls = async () => Number(await value(db, "select coalesce(sum(calls), 0) from pg_stat_user_functions where funcname = 'queue_stats'"));
  const first = await calls();
  const began = Date.now();
  await until('ten reads', async () => await calls() >= first + 10, 40);
  const rate = (await calls() - first) / ((Date.now() - began) / 1000);
  // Statistics arrive up to a second late, so this is a bound and not a measurement.
  assert.ok(rate < 3, `${rate} reads a second`);
  control.abort();
  await counted.stop();
  await db.query('alter database console_test reset track_functions');
});
