// Uses the page as a reader does, and leaves what it saw in the element `seen`.
addEventListener('load', async () => {
  const seen = { errors: [] };
  // Nothing is drawn without a screen: no frames, and no events of scrolling.
  window.requestAnimationFrame = paint => setTimeout(paint, 0);
  addEventListener('error', event => seen.errors.push(event.message));
  const element = id => document.getElementById(id);
  const pause = ms => new Promise(done => setTimeout(done, ms));
  const rows = () => [...document.querySelectorAll('#stage .row')].map(row => row.querySelector('.label').textContent);
  const key = key => document.body.dispatchEvent(new KeyboardEvent('keydown', { key, bubbles: true }));
  const fill = async (id, value) => { element(id).value = value; element(id).oninput(); await pause(300); };
  const look = () => ({ count: element('count').value, first: rows()[0], rows: rows().length });
  try {
    seen.start = look();
    element('scroll').scrollTop = element('scroll').scrollHeight;
    element('scroll').onscroll();
    await pause(300);
    seen.end = rows().at(-1);
    await fill('search', 'psn=77777');
    seen.search = look();
    await fill('search', 'URXE_FAULTS');
    seen.search_notes = look();
    await fill('search', '');
    element('opcode').value = [...element('opcode').options].find(option => option.text.includes('Acknowledge')).value;
    element('opcode').onchange();
    seen.opcode = look();
    element('opcode').value = '';
    element('opcode').onchange();
    element('trouble').click();
    seen.trouble = look();
    element('trouble').click();
    element('join').click();
    seen.apart = look();
    element('join').click();
    seen.again = look();
    element('scroll').scrollTop = 0;
    element('scroll').onscroll();
    key('n');
    seen.next = element('packet').textContent;
    key('n');
    seen.after_next = element('packet').textContent;
    key('p');
    seen.previous = element('packet').textContent;
    await pause(100);
    seen.chosen = document.querySelector('#stage .row.chosen .label').textContent;
    key('Escape');
    seen.is_closed = element('packet').hidden;
    element('stage').querySelector('.row').dispatchEvent(new MouseEvent('click', { bubbles: true }));
    seen.clicked = element('packet').textContent;
    seen.exchanges = element('exchanges').children.length;
    await fill('filter', '0x33');
    seen.filtered = element('exchanges').textContent;
    element('exchanges').querySelector('li').click();
    seen.opened = { ...look(), lanes: element('lanes').textContent, hash: location.hash };
    await fill('filter', '51');
    seen.filtered_decimal = element('exchanges').children.length;
    const style = getComputedStyle(document.body);
    seen.colours = [style.backgroundColor, style.color];
    seen.is_dark = matchMedia('(prefers-color-scheme: dark)').matches;
    // Notes beside the arrows, or below them on narrow screens, are on the screen.
    seen.outside = [...document.querySelectorAll('#stage text')].filter(text => text.getBoundingClientRect().right > innerWidth).length;
  } catch (error) { seen.errors.push(`${error.stack}`); }
  const result = document.createElement('script');
  result.type = 'application/json';
  result.id = 'seen';
  result.textContent = JSON.stringify(seen).replaceAll('<', '\\u003c');
  document.body.append(result);
});
