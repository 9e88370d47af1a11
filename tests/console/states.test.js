// Empty, broken and forbidden states; who may ask, and from where.
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, afterEach, before, test } from 'node:test';
import { check, connect, createDatabase, person, run, send as sendTo, startBrowser, startConsole, until, urlOf, value } from './support.js';

const secret = randomBytes(12).toString('hex');
let db, admin, browser, one, server, folder;
const ROLES = ['console_nobody', 'console_guest', 'console_producer', 'console_reader'];

before(async () => {
  db = await createDatabase('console_states');
  (await createDatabase('console_bare', { hasExtension: false })).end();
  admin = await connect('postgres');
  for (const role of ROLES) {
    await admin.query(`drop role if exists ${role}`);
    await admin.query(`create role ${role} login password '${secret}'`);
  }
  await db.query("select fetchq.queue_create('mail'), fetchq.queue_create('jobs')");
  await db.query(`select fetchq.doc_put('mail', 'm-1', '{"secret": true}')`);
  await db.query('grant usage on schema fetchq, fetchq_data to console_guest');
  await db.query("select fetchq.queue_grant('mail', 'console_producer', 'producer'), fetchq.queue_grant('mail', 'console_reader', 'reader')");
  folder = mkdtempSync(join(tmpdir(), 'fetchq-console-'));
  browser = await startBrowser();
});

after(async () => {
  await browser?.close();
  await db?.end();
  for (const name of ['console_states', 'console_bare']) await admin.query(`drop database if exists ${name} with (force)`);
  for (const role of ROLES) await admin.query(`drop role if exists ${role}`);
  await admin.end();
  rmSync(folder, { recursive: true, force: true });
});

afterEach(async () => {
  await one?.close();
  await server?.stop();
  one = server = undefined;
});

async function go(path, options) {
  one ??= await person(browser, options);
  const answer = await one.page.goto(`${server.address}${path}`);
  await check(one);
  return { page: one.page, status: answer.status(), text: await one.page.locator('main').innerText() };
}

const as = (role) => urlOf('console_states', role, secret);

const send = (path, options) => sendTo(server.address, path, options);

test('a server that is down is said so on every page', async () => {
  server = await startConsole(['postgres://postgres@127.0.0.1:1/console_states']);
  for (const path of ['/db/console_states', '/db/console_states/workers', '/db/console_states/queues/mail/documents']) {
    const { status, text } = await go(path);
    assert.equal(status, 503);
    assert.match(text, /cannot be reached[\s\S]*What to do: Check that the server runs/);
  }
});

test('a server that ends connections does not stop the console', async () => {
  server = await startConsole([urlOf('console_states')]);
  const { page } = await go('/db/console_states');
  await admin.query("select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'fetchq console'");
  await db.query("select fetchq.doc_put('jobs', 'after the restart')");
  const ready = page.getByRole('row', { name: /^jobs/ }).locator('td').first();
  await until('new numbers', async () => await ready.innerText() === '1');
  await db.query("select fetchq.queue_truncate('jobs')");
});

test('a database without the extension says how to create it', async () => {
  server = await startConsole([urlOf('console_bare')]);
  for (const path of ['', '/schedules', '/dead-letters', '/maintenance']) {
    const { status, text } = await go(`/db/console_bare${path}`);
    assert.equal(status, 503);
    assert.match(text, /no extension fetchq[\s\S]*create extension fetchq/);
  }
});

test('an extension that is older says how to update it', async () => {
  const bare = await connect('console_bare');
  await bare.query('create schema fetchq; create function fetchq.info(out version text) language sql as $$ select \'4.0.2\' $$');
  server = await startConsole([urlOf('console_bare')]);
  const { status, text } = await go('/db/console_bare');
  assert.equal(status, 503);
  assert.match(text, /too old[\s\S]*alter extension fetchq update/);
  await bare.query('drop schema fetchq cascade');
  await bare.end();
});

test('a role without any right learns which grant is missing', async () => {
  server = await startConsole([as('console_nobody')]);
  const { status, text } = await go('/db/console_states');
  assert.equal(status, 403);
  assert.match(text, /grant usage on schema fetchq, fetchq_data to console_nobody/);
});

test('a role without a queue learns how to get one', async () => {
  server = await startConsole([as('console_guest')]);
  const { status, text } = await go('/db/console_states');
  assert.equal(status, 200);
  assert.match(text, /no queue on which the role console_guest has a right[\s\S]*queue_grant/);
  for (const path of ['/workers', '/schedules', '/dead-letters', '/maintenance']) await go(`/db/console_states${path}`);
});

test('a producer sees its queue, and no document; the page names the grant', async () => {
  server = await startConsole([as('console_producer')]);
  const overview = await go('/db/console_states');
  assert.deepEqual(await overview.page.locator('[data-region=queues] tbody th').allInnerTexts(), ['mail']);
  const state = await go('/db/console_states/queues/mail');
  assert.match(state.text, /queue_grant\('mail', 'console_producer', 'reader'\)/);
  const day = await go('/db/console_states/queues/mail?span=day');
  assert.match(day.text, /Over time[\s\S]*queue_grant\('mail', 'console_producer', 'reader'\)[\s\S]*These are the last minutes/);
  assert.equal(await day.page.locator('canvas').count(), 3);
  for (const path of ['documents', 'document?subject=m-1']) {
    const { status, text } = await go(`/db/console_states/queues/mail/${path}`);
    assert.equal(status, 403);
    assert.match(text, /not a reader of queue "mail"[\s\S]*queue_grant\('mail', 'console_producer', 'reader'\)/);
    assert.ok(!text.includes('secret'));
  }
  assert.equal((await go('/db/console_states/queues/jobs')).status, 404);
});

test('a reader sees payloads, unless they are hidden, and an action names the grant that is missing', async () => {
  server = await startConsole([as('console_reader')], '--allow-actions');
  const { page, text } = await go('/db/console_states/queues/mail/document?subject=m-1');
  assert.match(text, /"secret": true/);
  await page.getByRole('button', { name: 'Retry now' }).click();
  assert.match(await page.getByRole('alert').innerText(), /queue_grant\('mail', 'console_reader', 'worker'\)/);
  await go('/db/console_states/queues/mail');
  await page.getByRole('button', { name: 'Pause', exact: true }).click();
  assert.match(await page.getByRole('alert').innerText(), /queue_grant\('mail', 'console_reader', 'manager'\)/);
  await check(one);
  await server.stop();
  server = await startConsole([as('console_reader')], '--hide-payloads');
  assert.doesNotMatch((await go('/db/console_states/queues/mail/document?subject=m-1')).text, /"secret"/);
  // A search would tell what they are.
  assert.match((await go(`/db/console_states/queues/mail/documents?payload=${encodeURIComponent('{"other": 1}')}`)).text, /m-1/);
});

test('documents without a worker are a problem, and dead letters are none', async () => {
  await db.query(`select fetchq.queue_create('letters_dead'), fetchq.queue_create('letters', '{"dead_letter": "letters_dead"}')`);
  await db.query("select fetchq.doc_put('letters', 'gone-' || i) from generate_series(1, 3) i");
  await db.query("select fetchq.doc_kill('letters', subject, lease => lease) from fetchq.doc_lease('letters', 3)");
  await db.query("select fetchq.doc_put('jobs', 'alone')");
  await db.query('alter database console_states set fetchq.no_worker_after = 0');
  server = await startConsole([urlOf('console_states')]);
  for (const colorScheme of ['light', 'dark']) {
    const { page } = await go('/db/console_states?sort=oldest', { colorScheme });
    const problems = page.locator('[data-region=problems]');
    await until('the problem', async () => /workers: missing/.test(await problems.innerText()));
    const problem = await page.locator('.problems li', { hasText: 'workers: missing' }).innerText();
    assert.match(problem, /"jobs": 1 pending, the first has waited since[\s\S]*What to do: Start a worker/);
    assert.doesNotMatch(problem, /letters/);
    assert.match(await page.locator('.facts').innerText(), /dead letters waiting 3 in dead-letter queue "letters_dead" since/);
    // Its documents are older than those of the other queues, and it does not come first.
    const names = await page.locator('[data-region=queues] tbody th').allInnerTexts();
    assert.deepEqual(names.slice(0, 2), ['mail', 'jobs']);
    assert.ok(names.includes('letters_dead dead letters'), String(names));
    await check(one);
    await page.getByRole('link', { name: 'Queues, the oldest first' }).waitFor();
    await page.locator('.facts').getByRole('link', { name: 'Dead letters' }).click();
    assert.match(await page.locator('main').innerText(), /letters_dead/);
    await go('/db/console_states/queues/letters_dead');
    assert.match(await page.locator('[data-region=numbers]').innerText(), /Other queues send their dead letters here[\s\S]*Oldest dead letter/i);
    await one.close();
    one = undefined;
  }
  await db.query('alter database console_states reset fetchq.no_worker_after');
  await db.query("select fetchq.queue_drop('letters'), fetchq.queue_drop('letters_dead'), fetchq.queue_truncate('jobs')");
});

test('what does not exist is not found', async () => {
  server = await startConsole([urlOf('console_states')]);
  for (const path of ['/nothing', '/db/other', '/db/console_states/queues/none', '/db/console_states/queues/none/documents',
    '/db/console_states/queues/none/settings', '/db/console_states/queues/mail/document?subject=none', `/db/console_states/queues/${encodeURIComponent('a"<b>')}`]) {
    const { status, text } = await go(path);
    assert.ok(status === 404 || status === 422, `${path}: ${status}`);
    assert.ok(text.length > 20, path);
  }
});

test('without --allow-actions nothing can be changed', async () => {
  server = await startConsole([urlOf('console_states')]);
  for (const path of ['', '/documents', '/settings', '/document?subject=m-1']) {
    const { page } = await go(`/db/console_states/queues/mail${path}`);
    assert.equal(await page.locator('form[method=post]').count(), 0, path);
  }
  const token = 'csrf=x&do=queue_pause&queue=mail';
  const headers = { origin: server.address, 'content-type': 'application/x-www-form-urlencoded' };
  assert.equal((await send('/db/console_states/act', { method: 'POST', headers, body: token })).status, 403);
  assert.equal(await value(db, "select is_paused from fetchq.queue_stats('mail')"), false);
});

test('the variable for containers allows actions, too', async () => {
  for (const [text, isAllowed] of [['', false], ['0', false], ['1', true]]) {
    process.env.FETCHQ_ALLOW_ACTIONS = text;
    try {
      server = await startConsole([urlOf('console_states')]);
    } finally {
      delete process.env.FETCHQ_ALLOW_ACTIONS;
    }
    const { text: page } = await send('/db/console_states/queues/mail');
    assert.equal(page.includes('name="csrf"'), isAllowed, `FETCHQ_ALLOW_ACTIONS=${text}`);
    await server.stop();
  }
});

test('no other site can act: neither without a token, nor from another origin, nor by another name', async () => {
  server = await startConsole([urlOf('console_states')], '--allow-actions');
  const page = await send('/db/console_states/queues/mail');
  const cookie = page.headers['set-cookie'][0].split(';')[0];
  assert.match(page.headers['set-cookie'][0], /HttpOnly; SameSite=Strict/);
  const token = /name="csrf" value="([^"]+)"/.exec(page.text)[1];
  const body = `csrf=${token}&do=queue_pause&queue=mail&back=//evil.example/`;
  const kind = { 'content-type': 'application/x-www-form-urlencoded' };
  const post = (headers, text = body) => send('/db/console_states/act', { method: 'POST', headers: { ...kind, ...headers }, body: text });
  const origin = server.address;
  assert.equal((await post({ cookie })).status, 403, 'no origin');
  assert.equal((await post({ cookie, origin: 'https://evil.example' })).status, 403, 'another origin');
  assert.equal((await post({ cookie, origin: 'null' })).status, 403, 'no origin');
  assert.equal((await post({ origin })).status, 403, 'no session');
  assert.equal((await post({ cookie, origin }, body.replace(token, 'x'))).status, 403, 'a wrong token');
  assert.equal((await post({ cookie: 'fetchq_session=AAAAAAAAAAAAAAAAAAAAAA', origin }, body)).status, 403, 'the token of another session');
  assert.equal((await send('/db/console_states/act?do=queue_pause&queue=mail', { headers: { cookie } })).status, 405, 'GET');
  assert.equal((await send('/db/console_states', { headers: { host: 'evil.example' } })).status, 421, 'another name');
  assert.equal(await value(db, "select is_paused from fetchq.queue_stats('mail')"), false);
  const done = await post({ cookie, origin });
  assert.equal(done.status, 303);
  assert.equal(done.headers.location, '/db/console_states', 'no redirect to another site');
  assert.equal(await value(db, "select is_paused from fetchq.queue_stats('mail')"), true);
  await db.query("select fetchq.queue_resume('mail')");
  const forged = `fetchq_flash=${Buffer.from('iforged').toString('base64url')}.AAAA`;
  assert.doesNotMatch((await send('/db/console_states', { headers: { cookie: forged } })).text, /forged/);
});

test('every answer has the security headers', async () => {
  server = await startConsole([urlOf('console_states')]);
  for (const path of ['/', '/db/console_states', '/nothing', '/assets/x/y', '/db/console_states/queues/mail/series']) {
    const { headers } = await send(path);
    assert.match(headers['content-security-policy'], /^default-src 'none'; script-src 'self'; style-src 'self'/, path);
    assert.doesNotMatch(headers['content-security-policy'], /unsafe/);
    assert.equal(headers['x-content-type-options'], 'nosniff');
    assert.equal(headers['x-frame-options'], 'DENY');
  }
});

test('with --auth-header a request without it is refused', async () => {
  server = await startConsole([urlOf('console_states')], '--auth-header', 'X-Forwarded-User', '--origin', 'https://queues.example.com');
  assert.equal((await send('/db/console_states')).status, 403);
  const headers = { 'x-forwarded-user': '<ann>', host: 'queues.example.com' };
  const answer = await send('/db/console_states', { headers });
  assert.equal(answer.status, 200);
  assert.match(answer.text, /Logged in as &lt;ann&gt;/);
  assert.equal((await send('/db/console_states', { headers: { ...headers, 'x-forwarded-user': ['bob', 'ann'] } })).status, 403, 'two names');
  assert.equal((await send('/db/console_states', { headers: { ...headers, host: 'other.example.com' } })).status, 421);
});

test('with a password file a name and a password are needed', async () => {
  const file = join(folder, 'passwords');
  writeFileSync(file, 'ann:$2b$04$XMj6.89N3huB1MgYjOpCIOHO2jtbkejP0DB.6W.R.EHymzt.1d.4u\n');
  server = await startConsole([urlOf('console_states')], '--password-file', file);
  const denied = await send('/db/console_states');
  assert.equal(denied.status, 401);
  assert.match(denied.headers['www-authenticate'], /^Basic/);
  const login = (text) => send('/db/console_states', { headers: { authorization: `Basic ${Buffer.from(text).toString('base64')}` } });
  for (const text of ['ann:wrong', 'bob:right', 'ann:', 'ann']) assert.equal((await login(text)).status, 401, text);
  for (let n = 0; n < 2; n += 1) assert.equal((await login('ann:right')).status, 200);
  assert.equal((await login('ann:wrong')).status, 401, 'after a right one');
  await go('/db/console_states', { httpCredentials: { username: 'ann', password: 'right' } });
  writeFileSync(file, 'ann:plain text\n');
  const bad = await run('serve', '--url', urlOf('console_states'), '--password-file', file);
  assert.equal(bad.code, 1);
  assert.match(bad.text, /line 1 of the password file/);
});

test('it does not listen on a public address without a way to log in', async () => {
  const { code, text } = await run('serve', '--url', urlOf('console_states'), '--listen', '0.0.0.0:0');
  assert.equal(code, 1);
  assert.match(text, /--password-file or --auth-header, or say --insecure/);
});

test('a wrong connection string is an error without the password', async () => {
  const { code, text } = await run('serve', '--url', `postgres://me:${secret}@127.0.0.1:x/db`);
  assert.equal(code, 1);
  assert.match(text, /cannot be read/);
  assert.ok(!text.includes(secret));
});

test('several databases have a switch, and one that is down does not disturb the others', async () => {
  server = await startConsole([urlOf('console_states'), urlOf('console_bare'), 'postgres://postgres@127.0.0.1:1/console_states']);
  const { page, status } = await go('/');
  assert.equal(status, 200);
  await page.locator('.databases summary').click();
  assert.equal(await page.locator('.databases li').count(), 3);
  await check(one);
  await page.getByRole('link', { name: /^console_bare/ }).click();
  assert.match(await page.locator('main').innerText(), /no extension fetchq/);
  assert.equal((await go('/db/console_states-2')).status, 503);
  assert.equal((await go('/db/console_states')).status, 200);
});

test('a standby or a read-only role is read; what it refuses is said', async () => {
  await admin.query('alter database console_states set default_transaction_read_only = on');
  server = await startConsole([urlOf('console_states')], '--allow-actions');
  for (const path of ['', '/queues/mail', '/queues/mail/documents', '/workers', '/schedules', '/dead-letters', '/maintenance']) {
    assert.equal((await go(`/db/console_states${path}`)).status, 200, path);
  }
  const { page } = await go('/db/console_states/queues/mail');
  await page.getByRole('button', { name: 'Pause', exact: true }).click();
  assert.match(await page.getByRole('alert').innerText(), /read only/);
  await admin.query('alter database console_states reset default_transaction_read_only');
});

test('with many queues the pages are cut, and what reads all of them waits until it is asked for', async () => {
  const many = await createDatabase('console_many');
  for (let n = 0; n < 501; n += 1) await many.query('select fetchq.queue_create($1)', [`q${n}`]);
  await many.query("select fetchq.doc_put('q7', 'a'), fetchq.doc_put('q7', 'b')");
  await many.query("select fetchq.doc_lease('q7', 2, worker => 'busy')");
  server = await startConsole([urlOf('console_many')], '--allow-actions');
  const { page } = await go('/db/console_many');
  assert.equal(await page.locator('[data-region=queues] tbody tr').count(), 100);
  await page.getByRole('link', { name: 'Next' }).click();
  assert.match(await page.locator('.pager').innerText(), /Page 2 of 6, 501 queues/);
  await go('/db/console_many/workers');
  assert.equal(await page.locator('table').last().locator('tbody tr').count(), 2);
  await page.getByRole('button', { name: 'Release…' }).click();
  await page.getByRole('button', { name: 'Release its documents' }).click();
  assert.match(await page.locator('main > .notice').innerText(), /gave back 2 documents/);
  await go('/db/console_many/queues/q7/document?subject=a');
  await page.getByRole('link', { name: 'Look into all 501 queues' }).click();
  await check(one);
  assert.match(await page.locator('.story').innerText(), /q7/);
  await server.stop();
  await many.end();
  await admin.query('drop database console_many with (force)');
});
