// Pictures of every screen, wide and narrow, light and dark, with names that are long, hostile, or
// written from right to left, and of pages that are empty or broken:
//   node pictures.mjs FOLDER [PATTERN]     PATTERN selects pictures, such as 'queue-wide'
// Look at them after a change of the pages or the styles.
import { mkdirSync } from 'node:fs';
import { connect, createDatabase, startBrowser, startConsole, urlOf } from './support.js';

const folder = process.argv[2];
const only = new RegExp(process.argv[3] ?? '.');
mkdirSync(folder, { recursive: true });

const LONG = `order/2026-11-23/customer-48213/${'x'.repeat(180)}/end`;
const IMG = '<img src=x onerror=alert(1)>';
const RTL = 'הזמנה-42 مرحبا بالعالم';
const EMOJI = '🚀 launch 👩‍👩‍👧‍👦 日本語';
const BAD = [LONG, IMG, RTL, EMOJI];

const db = await createDatabase('pictures');
await db.query(`
  select fetchq.queue_create(name) from unnest('{invoices, mail_dead, thumbnails, webhooks, a_rather_long_name_of_a_queue_1}'::text[]) name;
  select fetchq.queue_create('mail', '{"dead_letter": "mail_dead", "retry": {"base": "10 s"}, "history": {"completed": "1 day", "dropped": "1 day"}}');
  select fetchq.doc_put('invoices', 'invoice-' || i, delay => i * interval '10 minutes') from generate_series(1, 300) i;
  select fetchq.doc_put('webhooks', 'order-' || i) from generate_series(1, 40) i;
  select fetchq.docs_kill('webhooks', '{"subject_like": "order-3%"}');
  select fetchq.queue_pause('webhooks');
  select fetchq.doc_append('thumbnails', '{}') from generate_series(1, 1200) i;
  select fetchq.doc_put('a_rather_long_name_of_a_queue_1', 'alone-' || i, version => 3) from generate_series(1, 12) i;
  alter database pictures set fetchq.no_worker_after = 0;
  select fetchq.doc_put('mail', 'gone-' || i) from generate_series(1, 5) i;
  select fetchq.doc_drop('mail', subject, lease) from fetchq.doc_lease('mail', 5, worker => 'mailer-1');
  select fetchq.schedule_create('nightly report', 'invoices', '30 2 * * *', '{"a": 1}', timezone => 'Europe/Rome'),
         fetchq.schedule_create('tick', 'thumbnails', '*/5 * * * *', timezone => 'UTC'),
         fetchq.schedule_create('paused one', 'thumbnails', '1 hour', timezone => 'UTC'), fetchq.schedule_pause('paused one')`);
for (const subject of BAD) {
  const json = JSON.stringify({ text: subject, more: { a: [1, 2, 3], note: subject.repeat(3) } });
  await db.query('select fetchq.doc_put($1, $2, $3, headers => $3, priority => 100)', ['mail', subject, json]);
}
const leased = await db.query("select lease from fetchq.doc_lease('mail', 4, duration => '1 hour', worker => $1)", [`worker <b>${RTL}`]);
const { lease } = leased.rows[0];
const reject = `select fetchq.doc_reject('mail', $1, $2, $3, lease => ${lease}, delay => '5 minutes')`;
await db.query(reject, [LONG, `smtp.example.com: connection refused while ${'sending '.repeat(20)}`, JSON.stringify({ code: 421, stack: 'at x\nat y\n'.repeat(5) })]);
await db.query(reject, [IMG, IMG, JSON.stringify({ code: IMG })]);
await db.query("select fetchq.doc_kill('mail', $1, message => 'no', lease => $2)", [RTL, lease]);
await db.query("select fetchq.doc_lease('thumbnails', 7, duration => '1 hour', worker => 'thumb-1')");
for (const [name, hasExtension] of [['pictures_empty', true], ['pictures_bare', false]]) await (await createDatabase(name, { hasExtension })).end();

await db.query(`insert into fetchq_data.mail__metrics (created_at, metric, value)
  select now() - interval '7 days' + i * interval '5 minutes', m.metric, case m.metric when 'pnd' then 40 + 35 * sin(i / 46.0) when 'act' then 5 when 'pln' then i / 100 when 'fai' then i / 9 else i * 40 + 900 * sin(i / 46.0) end
  from generate_series(0, 2015) i, unnest('{pnd,act,pln,ent,pkd,suc,fai}'::text[]) m (metric)`);

const mail = '/db/pictures/queues/mail';
const document = (queue, subject) => `/db/pictures/queues/${queue}/document?subject=${encodeURIComponent(subject)}`;
const screens = {
  overview: '/db/pictures', 'overview-none': '/db/pictures?q=zzz', queue: mail, 'queue-week': `${mail}?span=week`, 'queue-paused': '/db/pictures/queues/webhooks', 'queue-dead': '/db/pictures/queues/mail_dead',
  documents: `${mail}/documents`, 'documents-more': '/db/pictures/queues/invoices/documents?min_attempts=0', 'documents-wrong': `${mail}/documents?older_than=soon`,
  settings: `${mail}/settings`, history: `${mail}/history`, 'document-long': document('mail', LONG), 'document-img': document('mail', IMG), 'document-rtl': document('mail_dead', RTL), 'document-emoji': document('mail', EMOJI), 'document-alone': document('a_rather_long_name_of_a_queue_1', 'alone-1'),
  'dead-letters': '/db/pictures/dead-letters', workers: '/db/pictures/workers', schedules: '/db/pictures/schedules?expression=30+2+*+*+*&timezone=Europe/Rome',
  'schedules-wrong': '/db/pictures/schedules?expression=99+2+*+*+*', maintenance: '/db/pictures/maintenance', 'queue-none': '/db/pictures/queues/none',
  'empty-overview': '/db/pictures_empty', 'empty-workers': '/db/pictures_empty/workers', 'empty-dead-letters': '/db/pictures_empty/dead-letters', 'empty-schedules': '/db/pictures_empty/schedules',
  'without-extension': '/db/pictures_bare', down: '/db/down',
};

let isLoading = true;
async function work() {
  const client = await connect('pictures');
  for (let n = 0; isLoading; n += 1) {
    await client.query("select fetchq.doc_append('thumbnails', '{}') from generate_series(1, $1::int)", [Math.round(10 + 8 * Math.sin(n / 12))]);
    await client.query("select fetchq.doc_append('mail', '{}') from generate_series(1, 6)");
    for (const queue of ['mail', 'thumbnails']) {
      const { rows } = await client.query('select subject, lease from fetchq.doc_lease($1, 8, worker => $2)', [queue, `${queue}-w`]);
      const settled = rows.filter((row) => !BAD.includes(row.subject))
        .map((row, index) => (n % 4 || index ? { ...row, action: 'complete' } : { ...row, action: 'reject', message: 'timeout' }));
      if (settled.length) await client.query('select fetchq.docs_settle($1, $2)', [queue, JSON.stringify(settled)]);
    }
    await new Promise((wake) => setTimeout(wake, 250));
  }
  await client.end();
}

const server = await startConsole([...['pictures', 'pictures_empty', 'pictures_bare'].map((name) => urlOf(name)), 'postgres://postgres@127.0.0.1:1/down'], '--allow-actions');
const browser = await startBrowser();
const load = work();
const first = await browser.newPage();
await first.goto(`${server.address}/db/pictures`);
await first.waitForTimeout(12000);
for (const [size, viewport] of Object.entries({ wide: { width: 1440, height: 900 }, narrow: { width: 390, height: 844 } })) {
  for (const colorScheme of ['light', 'dark']) {
    const context = await browser.newContext({ viewport, colorScheme });
    const page = await context.newPage();
    const shoot = (name) => page.screenshot({ path: `${folder}/${name}-${size}-${colorScheme}.png`, fullPage: true });
    const isWanted = (name) => only.test(`${name}-${size}-${colorScheme}`);
    for (const [name, path] of Object.entries(screens).filter(([screen]) => isWanted(screen))) {
      await page.goto(server.address + path);
      await page.waitForTimeout(name.startsWith('queue') ? 3000 : 300);
      await shoot(name);
    }
    if (isWanted('question')) {
      await page.goto(`${server.address}/db/pictures/queues/invoices/documents`);
      await page.getByRole('button', { name: 'Count…' }).click();
      await shoot('question');
    }
    if (isWanted('answer')) {
      await page.goto(`${server.address}/db/pictures/queues/invoices`);
      await page.getByRole('button', { name: 'Pause', exact: true }).click();
      await shoot('answer');
      await page.getByRole('button', { name: 'Resume', exact: true }).click();
    }
    await context.close();
  }
}
isLoading = false;
await load;
await browser.close();
await server.stop();
await db.end();
const admin = await connect('postgres');
for (const name of ['pictures', 'pictures_empty', 'pictures_bare']) await admin.query(`drop database ${name} with (force)`);
await admin.end();
