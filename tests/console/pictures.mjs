// Pictures of every screen, wide and narrow, light and dark: node pictures.mjs ADDRESS DATABASE FOLDER
import { mkdirSync } from 'node:fs';
import { startBrowser } from './support.js';

const [address, database, folder, only = ''] = process.argv.slice(2);
const queue = process.env.PICTURE_QUEUE ?? 'mail';
const subject = process.env.PICTURE_SUBJECT ?? 'm-1';
const screens = {
  overview: '', queue: `/queues/${queue}`, documents: `/queues/${queue}/documents`, settings: `/queues/${queue}/settings`,
  document: `/queues/${queue}/document?subject=${encodeURIComponent(subject)}`, 'dead-letters': '/dead-letters',
  workers: '/workers', schedules: '/schedules?expression=30+2+*+*+*', maintenance: '/maintenance',
};
mkdirSync(folder, { recursive: true });
const browser = await startBrowser();
for (const [size, viewport] of Object.entries({ wide: { width: 1280, height: 800 }, narrow: { width: 380, height: 800 } })) {
  for (const colorScheme of ['light', 'dark']) {
    const context = await browser.newContext({ viewport, colorScheme, deviceScaleFactor: size === 'wide' ? 1 : 1.5 });
    const page = await context.newPage();
    for (const [name, path] of Object.entries(screens)) {
      if (!`${name}-${size}-${colorScheme}`.includes(only)) continue;
      await page.goto(`${address}/db/${database}${path}`);
      await page.waitForTimeout(name === 'queue' ? 4000 : 500);
      await page.screenshot({ path: `${folder}/${name}-${size}-${colorScheme}.png`, fullPage: true });
    }
    await context.close();
  }
}
await browser.close();
