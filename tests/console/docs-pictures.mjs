// Makes the pictures of the console in docs/images: scripts/console-pictures.sh.
import { connect, createDatabase, startBrowser, startConsole, urlOf } from './support.js';

const folder = process.argv[2];
const seconds = 45;
const db = await createDatabase('shop');
await db.query(`
  select fetchq.queue_create(name) from unnest('{invoices, mail_dead, thumbnails, webhooks}'::text[]) name;
  select fetchq.queue_create('mail', '{"dead_letter": "mail_dead", "retry": {"base": "10 s"}}');
  select fetchq.doc_put('invoices', 'invoice-' || i, delay => i * interval '10 minutes') from generate_series(1, 300) i;
  select fetchq.doc_put('webhooks', 'order-' || i) from generate_series(1, 40) i;
  select fetchq.docs_kill('webhooks', '{"subject_like": "order-3%"}');
  select fetchq.queue_pause('webhooks')`);
await db.query(`select fetchq.doc_put('mail', 'welcome-42', '{"to": "ann@example.com", "template": "welcome"}', priority => 9, headers => '{"trace": "4bf92f35"}')`);
await db.query(`select fetchq.doc_reject('mail', subject, 'smtp.example.com: connection refused', '{"code": 421}', lease => lease, delay => '5 minutes')
  from fetchq.doc_lease('mail', 1, worker => 'mailer-1')`);

const server = await startConsole([urlOf('shop')], '--allow-actions');
const browser = await startBrowser();
const page = await (await browser.newContext({ viewport: { width: 1200, height: 720 } })).newPage();
await page.goto(`${server.address}/db/shop`);
const end = Date.now() + seconds * 1000;
const load = ['mail', 'thumbnails'].map(async (queue, index) => {
  const client = await connect('shop');
  for (let n = 0; Date.now() < end; n += 1) {
    const pushed = Math.round(10 + 8 * Math.sin(n / 12 + index));
    await client.query("select fetchq.doc_append($1, '{}') from generate_series(1, $2::int)", [queue, pushed]);
    const { rows } = await client.query('select subject, lease from fetchq.doc_lease($1, 11, worker => $2)', [queue, `${queue}-${n % 3}`]);
    const settled = rows.map((row, row_number) => (n % 4 || row_number ? { ...row, action: 'complete' } : { ...row, action: 'reject', message: 'timeout' }));
    if (settled.length) await client.query('select fetchq.docs_settle($1, $2)', [queue, JSON.stringify(settled)]);
    await new Promise((wake) => setTimeout(wake, 250));
  }
  await client.end();
});
await new Promise((wake) => setTimeout(wake, (seconds - 12) * 1000));
await page.screenshot({ path: `${folder}/console-overview.png`, fullPage: true });
await page.goto(`${server.address}/db/shop/queues/mail`);
await page.waitForTimeout(5000);
await page.screenshot({ path: `${folder}/console-queue.png`, fullPage: true });
await page.goto(`${server.address}/db/shop/queues/mail/document?subject=welcome-42`);
await page.screenshot({ path: `${folder}/console-document.png`, fullPage: true });
await Promise.all(load);
await browser.close();
await server.stop();
await db.end();
const admin = await connect('postgres');
await admin.query('drop database shop with (force)');
await admin.end();
