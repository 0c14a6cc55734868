'use strict';
(() => {
  const data = JSON.parse(document.getElementById('data').textContent);
  const element = id => document.getElementById(id);
  // Bits of the column `flags`, as in html.rs.
  const THERE = 1, LOST = 2, LATE = 4, AGAIN = 8, RESPONSE = 16, NAK = 32, MIDDLE = 64, TROUBLE = 128, DISCARDED = 256;
  const ROW = 36, NOTE = 17, GAP = 30, FARTHEST = 64, SLOPE = 7;
  // Browsers have no taller elements.
  const TALLEST = 8e6;
  const CHARACTER = 7.25;

  let exchange, items = [], chosen = -1, layout, frame = 0, texts = new Map();

  const escaped = text => String(text).replace(/[&<>"]/g, c => ({ '&': '&amp;', '<': '&lt;', '>': '&gt;', '"': '&quot;' }[c]));
  const duration = ns => ns < 1e3 ? `${ns} ns` : ns < 1e6 ? `${(ns / 1e3).toFixed(ns < 1e4 ? 2 : 1)} µs`
    : ns < 1e9 ? `${(ns / 1e6).toFixed(ns < 1e7 ? 2 : 1)} ms` : `${(ns / 1e9).toFixed(2)} s`;
  const seconds = ns => (ns / 1e9).toFixed(6);
  const endName = end => `${end.address} QP ${end.qp ?? '?'}`;
  const author = by => by === 'left' ? endName(exchange.left) : by === 'right' ? endName(exchange.right)
    : by === 'trace' ? 'urxe trace' : 'the capture';

  // Columns of the exchange that are made from others, when it is shown for the first time.
  function prepare(exchange) {
    if (exchange.time) return;
    let now = 0;
    exchange.time = exchange.at.map(since => now += since);
    for (const name of ['detail', 'flight', 'wait']) exchange[name] = new Map(exchange[name]);
    const notes = new Map();
    for (const [index, by, text] of exchange.notes) {
      if (!notes.has(index)) notes.set(index, []);
      notes.get(index).push({ by, text });
    }
    exchange.notes = notes;
  }

  const label = index => {
    const len = exchange.len[index] ? ` Len=${exchange.len[index]}` : '';
    return `${data.opcodes[exchange.opcode[index]]} PSN=${exchange.psn[index]}`
      + (exchange.detail.has(index) ? ` ${exchange.detail.get(index)}` : '') + len;
  };
  const itemLabel = item => item.count === 1 ? label(item.index)
    : `${item.count} × ${data.opcodes[exchange.opcode[item.index]]} PSN=${exchange.psn[item.index]}..${exchange.psn[item.last]}`;
  const look = flags => flags & LOST ? 'lost' : flags & DISCARDED ? 'discarded' : flags & NAK ? 'nak' : flags & LATE ? 'late' : flags & AGAIN ? 'again'
    : flags & RESPONSE ? 'response' : 'request';

  function text(index) {
    let found = texts.get(index);
    if (found === undefined) {
      const notes = (exchange.notes.get(index) ?? []).map(note => note.text).join(' ');
      texts.set(index, found = `${label(index)} ${notes}`.toLowerCase());
    }
    return found;
  }

  // Rows to show, by the filters.
  function select() {
    const wanted = element('search').value.trim().toLowerCase(), opcode = element('opcode').value;
    const trouble = element('trouble').checked, join = element('join').checked;
    const plain = index => (exchange.flags[index] & (MIDDLE | TROUBLE)) === MIDDLE;
    items = [];
    for (let index = 0; index < exchange.psn.length; index++) {
      const flags = exchange.flags[index];
      if (trouble && !(flags & TROUBLE) || opcode !== '' && exchange.opcode[index] !== +opcode) continue;
      if (wanted && !text(index).includes(wanted)) continue;
      const before = items[items.length - 1];
      if (join && before && before.last === index - 1 && plain(index) && plain(before.index)
          && exchange.flags[before.index] === flags && exchange.opcode[before.index] === exchange.opcode[index]) {
        before.last = index;
        before.count++;
      } else items.push({ index, last: index, count: 1 });
    }
    const packets = items.reduce((sum, item) => sum + item.count, 0);
    element('count').value = packets === exchange.psn.length ? `${packets.toLocaleString('en')} packets`
      : `${packets.toLocaleString('en')} of ${exchange.psn.length.toLocaleString('en')} packets`;
    measure();
  }

  // Lines of at most `width` characters.
  function wrap(words, width) {
    const lines = [''];
    for (let word of words.split(' ')) {
      const line = lines[lines.length - 1];
      if (line && line.length + 1 + word.length > width) lines.push('');
      while (word.length > width) {
        lines[lines.length - 1] = word.slice(0, width);
        word = word.slice(width);
        lines.push('');
      }
      lines[lines.length - 1] += (lines[lines.length - 1] ? ' ' : '') + word;
    }
    return lines;
  }

  // Lines of a row's notes: the author, then what it says.
  function noteLines(index, width) {
    const lines = [];
    let before;
    for (const note of exchange.notes.get(index) ?? []) {
      if (note.by !== before) lines.push({ by: note.by, text: author(note.by) });
      before = note.by;
      for (const line of wrap(note.text, width)) lines.push({ text: line });
    }
    return lines;
  }

  // Where everything is.
  function measure() {
    const width = element('scroll').clientWidth;
    const stacked = width < 900;
    const left = 190, right = stacked ? width - 50 : left + Math.max(400, Math.min(680, Math.round((width - 220) * 0.56)));
    const notes = stacked ? left + 16 : right + 40;
    const characters = Math.max(16, Math.floor(((stacked ? right : width) - notes - 14) / CHARACTER));
    layout = { width, stacked, left, right, notes, characters };
    for (let place = 0; place < items.length; place++) {
      const before = items[place - 1];
      items[place].since = before ? exchange.time[items[place].index] - exchange.time[before.last] : 0;
    }
    // Most intervals are true to scale.
    const steps = items.map(item => item.since).filter(since => since > 0).sort((a, b) => a - b);
    const scale = 12 / Math.max(steps[Math.floor(steps.length * 0.7)] ?? 1, 1);
    let y = 14;
    for (let place = 0; place < items.length; place++) {
      const item = items[place], step = item.since * scale;
      item.wait = exchange.wait.get(item.index);
      item.gap = item.wait || step > FARTHEST;
      y += item.gap ? GAP : Math.round(step);
      item.y = y;
      const lines = exchange.notes.has(item.index) ? noteLines(item.index, characters).length : 0;
      item.height = stacked ? ROW + lines * NOTE : Math.max(ROW, lines * NOTE + 10);
      y += item.height;
    }
    layout.height = y + 20;
    const shown = Math.min(layout.height, TALLEST), view = element('scroll').clientHeight;
    layout.ratio = layout.height > shown ? (layout.height - view) / (shown - view) : 1;
    element('spacer').style.height = `${shown}px`;
    lanes();
    map();
    paint();
  }

  function lanes() {
    const { left, right, notes, stacked } = layout;
    const end = (side, name) => `<div class="${side}" style="left:${side === 'left' ? left : right}px"><b>${escaped(name.address)}</b>`
      + `<span>QP ${name.qp ?? '?'}</span></div>`;
    element('lanes').innerHTML = '<div class="time" style="left:4px">seconds</div>' + end('left', exchange.left)
      + end('right', exchange.right) + (stacked ? '' : `<div class="notes" style="left:${notes + 40}px">notes</div>`);
  }

  // The item at a height, by bisection.
  function at(y) {
    let low = 0, high = items.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (items[middle].y + items[middle].height < y) low = middle + 1; else high = middle;
    }
    return low;
  }

  const schedule = () => { if (!frame) frame = requestAnimationFrame(paint); };

  function paint() {
    frame = 0;
    const view = element('scroll').clientHeight, top = element('scroll').scrollTop * layout.ratio;
    const { left, right, width } = layout;
    let out = `<svg width="${width}" height="${view}" role="img" aria-label="Sequence of packets">`
      + `<defs>${['request', 'response', 'again', 'nak', 'late'].map(name => `<marker id="tip-${name}" orient="auto" markerWidth="10" `
        + `markerHeight="8" refX="9" refY="4" markerUnits="userSpaceOnUse"><path d="M0,0 L10,4 L0,8 z" style="fill:var(--${name});stroke:none"/></marker>`).join('')}</defs>`
      + `<line class="axis" x1="122" y1="0" x2="122" y2="${view}"/>`;
    let bands = '', rows = '';
    for (let place = at(top); place < items.length && items[place].y - GAP - top < view; place++) {
      const item = items[place], y = item.y - top;
      if (item.gap) bands += band(item, y - GAP);
      rows += row(item, y);
    }
    out += bands + `<line class="lane" x1="${left}" y1="0" x2="${left}" y2="${view}"/><line class="lane" x1="${right}" y1="0" x2="${right}" y2="${view}"/>`
      + rows + (items.length ? '' : `<text x="${(left + right) / 2}" y="60" text-anchor="middle">no packet passes the filters</text>`) + '</svg>';
    element('stage').innerHTML = out;
  }

  // Time that is left out, or was waited.
  function band(item, y) {
    const { left, right } = layout, middle = (left + right) / 2;
    const words = item.wait ? item.wait[1] : `${duration(item.since)} without a packet`;
    const kind = item.wait ? 'timeout' : 'gap';
    let out = `<rect class="${kind}" x="112" y="${y + 4}" width="${right - 112 + 10}" height="${GAP - 8}" rx="4"/>`
      + `<path class="axis" style="stroke:var(--lane)" fill="none" d="M122,${y + 4} l-5,4 l10,6 l-5,4"/>`
      + `<text class="${kind}-text" x="${middle}" y="${y + GAP / 2 + 4}">${escaped(words)}</text>`;
    if (item.wait) {
      // At the end that waited.
      const x = exchange.flags[item.index] & THERE ? left - 7 : right + 7, to = exchange.flags[item.index] & THERE ? 5 : -5;
      out += `<path class="bracket" d="M${x + to},${y + 3} H${x} V${y + GAP - 3} H${x + to}"/>`;
    }
    return out;
  }

  function row(item, y) {
    const { left, right, notes, stacked, characters, width } = layout, flags = exchange.flags[item.index];
    const kind = look(flags), there = flags & THERE, middle = (left + right) / 2, stops = flags & (LOST | DISCARDED);
    const from = there ? left + 3 : right - 3, end = there ? right - 3 : left + 3, to = flags & LOST ? middle + (there ? 60 : -60) : flags & DISCARDED ? end + (there ? -5 : 5) : end;
    const top = y + 18, bottom = top + (flags & LATE ? SLOPE * 2 : SLOPE);
    // Leading zeros of addresses and keys tell nothing.
    let words = itemLabel(item).replace(/0x0+(?=[0-9a-f])/g, '0x');
    const most = Math.floor((right - left - 24) / CHARACTER);
    if (words.length > most) words = `${words.slice(0, most - 1)}…`;
    let out = `<g class="row${chosen === item.index ? ' chosen' : ''}" data-index="${item.index}">`
      + `<rect class="hit" x="0" y="${y}" width="${width}" height="${item.height}"/>`
      + `<text class="time" x="116" y="${top + 3}">${seconds(exchange.time[item.index])}</text>`
      + (item.since ? `<text class="since" x="116" y="${top + 15}">+${duration(item.since)}</text>` : '')
      + `<line class="axis" x1="119" y1="${top}" x2="125" y2="${top}"/>`
      + `<line class="arrow ${kind}" x1="${from}" y1="${top}" x2="${to}" y2="${flags & LOST ? (top + bottom) / 2 : bottom}"`
      + (stops ? '/>' : ` marker-end="url(#tip-${kind})"/>`);
    if (stops) {
      const x = to, cy = flags & LOST ? (top + bottom) / 2 : bottom;
      out += `<path class="arrow ${kind} cross" d="M${x - 5},${cy - 5} L${x + 5},${cy + 5} M${x + 5},${cy - 5} L${x - 5},${cy + 5}"/>`;
    }
    out += `<text class="label ${kind}" x="${middle}" y="${y + 13}">${escaped(words)}</text>`;
    const mark = flags & NAK ? 'NAK' : flags & LOST ? 'lost' : flags & DISCARDED ? 'dropped' : flags & LATE ? 'reordered' : flags & AGAIN ? 'retry' : '';
    if (exchange.notes.has(item.index)) {
      let line = stacked ? y + ROW + 8 : y + 15;
      for (const { by, text } of noteLines(item.index, characters)) {
        out += `<text x="${notes}" y="${line}" class="${by ? `by by-${by}` : ''}">${escaped(text)}</text>`;
        line += NOTE;
      }
    } else if (mark && !stacked) out += `<text class="mark ${kind}" x="${notes}" y="${y + 26}">${mark}</text>`;
    return out + '</g>';
  }

  // Where trouble is in the whole exchange.
  function map() {
    const canvas = element('map'), height = element('scroll').clientHeight, ratio = devicePixelRatio || 1;
    canvas.style.height = `${height}px`;
    canvas.width = 16 * ratio;
    canvas.height = height * ratio;
    const context = canvas.getContext('2d'), style = getComputedStyle(document.documentElement);
    const colours = Object.fromEntries(['nak', 'lost', 'discarded', 'late', 'again'].map(name => [name, style.getPropertyValue(`--${name}`)]));
    for (const item of items) {
      const colour = colours[look(exchange.flags[item.index])];
      if (!colour) continue;
      context.fillStyle = colour;
      context.fillRect(3 * ratio, item.y / layout.height * canvas.height, 10 * ratio, Math.max(2, ratio));
    }
  }

  function show(index) {
    chosen = index;
    const flags = exchange.flags[index], rows = [];
    const from = flags & THERE ? exchange.left : exchange.right, to = flags & THERE ? exchange.right : exchange.left;
    rows.push(['packet', `${index + 1} of ${exchange.psn.length}: ${label(index)}`], ['from', endName(from)], ['to', endName(to)]);
    rows.push(['time', `${new Date((exchange.start + exchange.time[index] / 1e9) * 1000).toISOString()}, ${seconds(exchange.time[index])} s after the first packet`]);
    if (exchange.flight.has(index)) rows.push(['under way', duration(exchange.flight.get(index))]);
    if (exchange.wait.has(index)) rows.push(['before it', exchange.wait.get(index)[1]]);
    for (const note of exchange.notes.get(index) ?? []) rows.push([author(note.by), note.text]);
    element('packet').innerHTML = `<dl>${rows.map(([name, value]) => `<dt>${escaped(name)}</dt><dd>${escaped(value)}</dd>`).join('')}</dl>`;
    element('packet').hidden = false;
    paint();
  }

  function go(place) {
    const item = items[place];
    if (!item) return;
    element('scroll').scrollTop = (item.y - element('scroll').clientHeight / 3) / layout.ratio;
    show(item.index);
  }

  function step(by) {
    const now = items.findIndex(item => item.last >= chosen);
    for (let place = chosen < 0 && by > 0 ? 0 : now + by; place >= 0 && place < items.length; place += by) {
      if (exchange.flags[items[place].index] & TROUBLE) return go(place);
    }
  }

  function open(number) {
    exchange = data.exchanges[number];
    prepare(exchange);
    texts = new Map();
    chosen = -1;
    element('packet').hidden = true;
    const used = [...new Set(exchange.opcode)].sort((a, b) => data.opcodes[a].localeCompare(data.opcodes[b]));
    element('opcode').innerHTML = '<option value="">every opcode</option>'
      + used.map(opcode => `<option value="${opcode}">${escaped(data.opcodes[opcode])}</option>`).join('');
    [...element('exchanges').children].forEach(entry => entry.classList.toggle('chosen', +entry.dataset.number === number));
    element('scroll').scrollTop = 0;
    select();
  }

  function index() {
    const wanted = element('filter').value.trim().toLowerCase();
    element('exchanges').innerHTML = data.exchanges.map((exchange, number) => {
      const { left, right } = exchange, names = `${endName(left)} ${endName(right)} ${parseInt(left.qp)} ${parseInt(right.qp)}`;
      if (wanted && !names.toLowerCase().includes(wanted)) return '';
      const trouble = exchange.troubles ? ` · <b>${exchange.troubles.toLocaleString('en')} with trouble</b>` : '';
      return `<li data-number="${number}">${escaped(endName(left))}<br>${escaped(endName(right))}<small>`
        + `${exchange.psn.length.toLocaleString('en')} packets${trouble}</small></li>`;
    }).join('');
  }

  const legend = [['request', 'request'], ['response', 'response'], ['again', 'sent again'], ['nak', 'NAK'], ['lost', 'lost on the way'],
    ['discarded', 'dropped by the receiver'], ['late', 'reordered']];
  element('legend').innerHTML = legend.map(([kind, name]) => `<div><svg width="44" height="12"><line class="arrow ${kind}" x1="2" y1="6" `
    + `x2="42" y2="6"/></svg>${name}</div>`).join('') + '<p>Gaps in time are compressed; bands say how long.</p>';
  element('warnings').innerHTML = data.warnings.map(warning => `<p>${escaped(warning)}</p>`).join('');

  index();
  element('filter').oninput = () => { index(); };
  element('exchanges').onclick = event => {
    const entry = event.target.closest('li');
    if (entry) { location.replace(`#${+entry.dataset.number + 1}`); open(+entry.dataset.number); }
  };
  let pause;
  element('search').oninput = () => { clearTimeout(pause); pause = setTimeout(select, 120); };
  element('opcode').onchange = element('trouble').onchange = element('join').onchange = select;
  element('next').onclick = () => step(1);
  element('previous').onclick = () => step(-1);
  element('scroll').onscroll = schedule;
  element('stage').onclick = event => {
    const hit = event.target.closest('.row');
    if (hit) show(+hit.dataset.index);
  };
  element('map').onclick = event => go(at(event.offsetY / element('map').clientHeight * layout.height));
  addEventListener('keydown', event => {
    if (event.target.matches('input, select')) { if (event.key === 'Escape') event.target.blur(); return; }
    if (event.key === '/') { event.preventDefault(); element('search').focus(); }
    if (event.key === 'n') step(1);
    if (event.key === 'p') step(-1);
    if (event.key === 'Escape') { element('packet').hidden = true; chosen = -1; paint(); }
  });
  new ResizeObserver(() => exchange && measure()).observe(element('scroll'));
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => map());
  const asked = +location.hash.slice(1) - 1;
  open(data.exchanges[asked] ? asked : 0);
})();
