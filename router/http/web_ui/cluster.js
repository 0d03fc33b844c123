// The state of the cluster, read once a second.

const WINDOW_S = 60;
const snapshots = [];  // of the last minute, oldest first

// From cumulative buckets, less those of an older snapshot; interpolates within the bucket.
function quantile(now, before, q) {
  const counts = now.counts.map((count, i) => count - before.counts[i]);
  const total = counts[counts.length - 1];
  if (total <= 0) return null;
  const rank = q * total;
  const i = counts.findIndex(count => count >= rank);
  if (i >= now.bounds_s.length) return now.bounds_s[now.bounds_s.length - 1];
  const low = i > 0 ? now.bounds_s[i - 1] : 0;
  const below = i > 0 ? counts[i - 1] : 0;
  return low + (now.bounds_s[i] - low) * (rank - below) / (counts[i] - below);
}

function duration(seconds) {
  if (seconds === null) return '–';
  return seconds < 1 ? (seconds * 1e3).toPrecision(3) + ' ms' : seconds.toPrecision(3) + ' s';
}

const tokens = status => {
  const count = histogram => histogram.counts[histogram.counts.length - 1];
  return count(status.time_to_first_token) + count(status.inter_token_latency);
};

function showLatency() {
  const now = snapshots[snapshots.length - 1], before = snapshots[0];
  if (!now.status.time_to_first_token) return;
  for (const [id, name] of [['ttft', 'time_to_first_token'], ['itl', 'inter_token_latency']]) {
    for (const [suffix, q] of [['p50', .5], ['p99', .99]]) {
      byId(`${id}-${suffix}`).textContent = duration(quantile(now.status[name], before.status[name], q));
    }
  }
  const recent = snapshots[Math.max(0, snapshots.length - 6)];
  const seconds = (now.time_ms - recent.time_ms) / 1e3;
  if (seconds > 0) {
    byId('rate').textContent = ((tokens(now.status) - tokens(recent.status)) / seconds).toFixed(1);
  }
}

function showWorker(worker) {
  const shown = element('div', 'worker');
  const {total, used, cached} = worker.kv_blocks;
  shown.dataset.role = worker.role;
  shown.dataset.state = worker.state;
  const row = element('div', 'row');
  row.append(element('span', 'grow', `${worker.role} ${worker.address}`),
             element('span', '', worker.state === 'ready' ?
                                 `${worker.running} running, ${worker.queued} queued` : worker.state));
  shown.append(row);
  const bar = element('div', 'bar');
  for (const [name, blocks] of [['used', used], ['cached', cached]]) {
    const part = element('div', name);
    part.style.width = (total > 0 ? 100 * blocks / total : 0) + '%';
    bar.append(part);
  }
  bar.title = `${used} of ${total} KV blocks in use, ${cached} cached`;
  shown.append(bar);
  return shown;
}

let nextPoll = 0;  // a timer; 0: no poll is due

async function poll() {
  nextPoll = 0;
  let again = true;
  try {
    const answer = await fetch('/v1/baton/status', {headers: headers()});
    if (answer.status === 401 || answer.status === 403) again = false;  // until there is another key
    if (!answer.ok) throw new Error(again ? `status ${answer.status}` : 'shown to an operator\'s key');
    const status = await answer.json();
    const now_ms = performance.now();
    snapshots.push({time_ms: now_ms, status});
    while (snapshots[0].time_ms < now_ms - WINDOW_S * 1e3) snapshots.shift();
    byId('state').textContent = status.ready ? 'ready' : 'not ready';
    byId('inflight').textContent = status.requests_inflight ?? '–';
    byId('workers').replaceChildren(...status.workers.map(showWorker));
    showLatency();
    if (byId('model').options.length === 0) loadModels();
  } catch (error) {
    byId('state').textContent = error.message;
  }
  if (again && !nextPoll) nextPoll = setTimeout(poll, 1000);
}

function pollNow() {
  clearTimeout(nextPoll);
  poll();
}
