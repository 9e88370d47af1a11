import { run } from './suite.js';

run('4.2.0');
