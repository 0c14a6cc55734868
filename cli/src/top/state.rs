//! State of the view: the last samples, and what the user has chosen. No terminal, no clock.

use std::cell::Cell;
use std::collections::{HashMap, HashSet, VecDeque};

use crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::columns::{Column, DEVICES, QPS, RX_BYTES, Row, TX_BYTES};
use super::sample::{Device, Key, QueuePair, Sample, Samples};

/// Samples whose rates are drawn as bars.
const HISTORY: usize = 240;

/// Rows that Page Up and Page Down go.
const PAGE: isize = 10;

/// Order of a table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sort {
    pub(super) column: usize,
    pub(super) is_ascending: bool,
}

/// Table that keys move in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Focus {
    Devices,
    QueuePairs,
}

/// Chosen row: by its key, since rows move; by its place, when what was chosen has gone.
#[derive(Clone, Default, Debug)]
struct Choice {
    key: Option<Key>,
    place: usize,
}

/// Consequence of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Next {
    Go,
    Quit,
    /// Control-Z.
    Suspend,
}

/// The view.
pub(super) struct Top {
    pub(super) samples: Samples,
    /// Bytes per second, sent and received, of what is there now.
    history: HashMap<Key, VecDeque<(u64, u64)>>,
    pub(super) error: Option<String>,
    pub(super) focus: Focus,
    devices: Choice,
    qps: Choice,
    device_sort: Sort,
    qp_sort: Sort,
    pub(super) filter: String,
    /// True while the filter is typed.
    pub(super) is_typing: bool,
    pub(super) is_paused: bool,
    pub(super) is_helping: bool,
    /// Device or queue pair whose details are shown.
    pub(super) detail: Option<Key>,
    /// Lines of the details, or of the help, that are above the screen.
    pub(super) scroll: usize,
    /// The most lines to scroll by, known when it is drawn.
    scroll_end: Cell<usize>,
    /// True where counters that are 0 are shown.
    pub(super) all: bool,
}

impl Top {
    pub(super) fn new(filter: String) -> Self {
        Self {
            samples: Samples::default(),
            history: HashMap::new(),
            error: None,
            focus: Focus::QueuePairs,
            devices: Choice::default(),
            qps: Choice::default(),
            device_sort: busiest(&DEVICES),
            qp_sort: busiest(&QPS),
            filter,
            is_typing: false,
            is_paused: false,
            is_helping: false,
            detail: None,
            scroll: 0,
            scroll_end: Cell::new(0),
            all: false,
        }
    }

    /// Sorts the tables that have a column of this name by it; false if neither has.
    pub(super) fn sort_by(&mut self, name: &str) -> bool {
        let (device, qp) = (sort_named(&DEVICES, name), sort_named(&QPS, name));
        self.device_sort = device.unwrap_or(self.device_sort);
        self.qp_sort = qp.unwrap_or(self.qp_sort);
        device.is_some() || qp.is_some()
    }

    /// Takes what the devices say now.
    pub(super) fn take(&mut self, sample: Sample) {
        if self.is_paused {
            return;
        }
        self.error = None;
        let Some((now, before)) = self.samples.take(sample) else { return };
        self.history.retain(|key, _| now.has(key));
        for key in now.keys() {
            let rate = |names| now.rate(before, key, names);
            let (Some(tx), Some(rx)) = (rate(TX_BYTES), rate(RX_BYTES)) else { continue };
            let history = self.history.entry(key.clone()).or_default();
            if history.len() == HISTORY {
                history.pop_front();
            }
            #[expect(clippy::cast_possible_truncation, reason = "rates of 64-bit counters")]
            history.push_back((tx as u64, rx as u64));
        }
    }

    pub(super) const fn sample(&self) -> Option<&Sample> {
        self.samples.now.as_ref()
    }

    /// Sum of counters.
    pub(super) fn sum(&self, key: &Key, names: &[&str]) -> u64 {
        self.samples.sum(key, names)
    }

    /// Growth of counters per second, between the last two samples.
    pub(super) fn rate(&self, key: &Key, names: &[&str]) -> Option<f64> {
        self.samples.rate(key, names)
    }

    /// Bytes per second, sent and received, oldest first.
    pub(super) fn history(&self, key: &Key) -> impl DoubleEndedIterator<Item = (u64, u64)> {
        self.history.get(key).into_iter().flatten().copied()
    }

    /// Lines that are above an area, of so many.
    pub(super) fn scrolled(&self, lines: usize, height: u16) -> u16 {
        let end = lines.saturating_sub(usize::from(height));
        self.scroll_end.set(end);
        u16::try_from(self.scroll.min(end)).unwrap_or(u16::MAX)
    }

    /// Devices that pass the filter, or have a queue pair that does, sorted.
    pub(super) fn devices(&self) -> Vec<&Device> {
        let Some(now) = &self.samples.now else { return Vec::new() };
        let passing = now.qps.iter().filter(|qp| self.passes(&words_of_qp(qp)));
        let with_qp: HashSet<Key> = passing.map(|qp| Key { qpn: None, ..qp.key.clone() }).collect();
        let rows = now.devices.iter();
        let rows = rows.filter(|device| self.passes(&words_of_device(device)) || with_qp.contains(&device.key));
        self.sorted(rows.collect(), &DEVICES, self.device_sort)
    }

    /// Queue pairs that pass the filter, sorted.
    pub(super) fn qps(&self) -> Vec<&QueuePair> {
        let Some(now) = &self.samples.now else { return Vec::new() };
        let rows = now.qps.iter().filter(|qp| self.passes(&words_of_qp(qp)));
        self.sorted(rows.collect(), &QPS, self.qp_sort)
    }

    /// Whether each word of the filter is in the text.
    fn passes(&self, text: &str) -> bool {
        self.filter.split_whitespace().all(|word| text.contains(&word.to_lowercase()))
    }

    fn sorted<'a, T: Row>(&self, mut rows: Vec<&'a T>, columns: &[Column<T>], sort: Sort) -> Vec<&'a T> {
        let Some(column) = columns.get(sort.column) else { return rows };
        rows.sort_by_key(|row| row.key());
        let mut cells: Vec<_> = rows.into_iter().map(|row| (column.cell(&self.samples, row), row)).collect();
        cells.sort_by(|(one, _), (two, _)| {
            let order = one.compare(two);
            if sort.is_ascending { order } else { order.reverse() }
        });
        cells.into_iter().map(|(_, row)| row).collect()
    }

    pub(super) const fn sort(&self, table: Focus) -> Sort {
        match table {
            Focus::Devices => self.device_sort,
            Focus::QueuePairs => self.qp_sort,
        }
    }

    /// Place of the chosen row among those shown.
    pub(super) fn chosen<T: Row>(&self, table: Focus, rows: &[&T]) -> Option<usize> {
        let choice = match table {
            Focus::Devices => &self.devices,
            Focus::QueuePairs => &self.qps,
        };
        let place = choice.key.as_ref().and_then(|key| rows.iter().position(|row| row.key() == key));
        let last = rows.len().checked_sub(1)?;
        Some(place.unwrap_or(choice.place).min(last))
    }

    /// Carries out a key.
    pub(super) fn press(&mut self, key: KeyEvent) -> Next {
        if key.kind == KeyEventKind::Release {
            return Next::Go;
        }
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return match key.code {
                KeyCode::Char('c') => Next::Quit,
                KeyCode::Char('z') => Next::Suspend,
                _ => Next::Go,
            };
        }
        if self.is_typing {
            self.type_filter(key.code);
            return Next::Go;
        }
        match key.code {
            KeyCode::Char('q') => return Next::Quit,
            KeyCode::Char(' ') => self.is_paused = !self.is_paused,
            KeyCode::Up | KeyCode::Char('k') => self.go(-1),
            KeyCode::Down | KeyCode::Char('j') => self.go(1),
            KeyCode::PageUp => self.go(-PAGE),
            KeyCode::PageDown => self.go(PAGE),
            KeyCode::Home | KeyCode::Char('g') => self.go(isize::MIN),
            KeyCode::End | KeyCode::Char('G') => self.go(isize::MAX),
            KeyCode::Esc | KeyCode::Left | KeyCode::Backspace => self.back(key.code),
            _ if self.is_helping => self.back(KeyCode::Esc),
            KeyCode::Char('?' | 'h') => (self.is_helping, self.scroll) = (true, 0),
            KeyCode::Char('a') => self.all = !self.all,
            _ if self.detail.is_some() => {}
            KeyCode::Char('/') => self.is_typing = true,
            KeyCode::Enter | KeyCode::Right => self.look_closely(),
            KeyCode::Tab | KeyCode::BackTab => {
                self.focus = match self.focus {
                    Focus::Devices => Focus::QueuePairs,
                    Focus::QueuePairs => Focus::Devices,
                }
            }
            KeyCode::Char('s') => self.sort_next(1),
            KeyCode::Char('S') => self.sort_next(-1),
            KeyCode::Char('r') => {
                let sort = self.sort_mut();
                sort.is_ascending = !sort.is_ascending;
            }
            _ => {}
        }
        Next::Go
    }

    fn type_filter(&mut self, key: KeyCode) {
        match key {
            KeyCode::Enter => self.is_typing = false,
            KeyCode::Esc => {
                self.is_typing = false;
                self.filter.clear();
            }
            KeyCode::Backspace => drop(self.filter.pop()),
            KeyCode::Char(letter) => self.filter.push(letter),
            _ => {}
        }
    }

    fn back(&mut self, key: KeyCode) {
        if self.is_helping {
            (self.is_helping, self.scroll) = (false, 0);
        } else if self.detail.take().is_none() && key == KeyCode::Esc {
            self.filter.clear();
        }
    }

    fn look_closely(&mut self) {
        self.scroll = 0;
        self.detail = match self.focus {
            Focus::Devices => self.chosen_key(Focus::Devices, &self.devices()),
            Focus::QueuePairs => self.chosen_key(Focus::QueuePairs, &self.qps()),
        };
    }

    fn chosen_key<T: Row>(&self, table: Focus, rows: &[&T]) -> Option<Key> {
        let row = rows.get(self.chosen(table, rows)?)?;
        Some(row.key().clone())
    }

    /// Goes some rows up or down.
    fn go(&mut self, by: isize) {
        if self.detail.is_some() || self.is_helping {
            self.scroll = self.scroll.saturating_add_signed(by).min(self.scroll_end.get());
            return;
        }
        match self.focus {
            Focus::Devices => self.devices = self.moved(Focus::Devices, &self.devices(), by),
            Focus::QueuePairs => self.qps = self.moved(Focus::QueuePairs, &self.qps(), by),
        }
    }

    fn moved<T: Row>(&self, table: Focus, rows: &[&T], by: isize) -> Choice {
        let Some(place) = self.chosen(table, rows) else { return Choice::default() };
        let place = place.saturating_add_signed(by).min(rows.len() - 1);
        Choice { key: rows.get(place).map(|row| row.key().clone()), place }
    }

    const fn sort_mut(&mut self) -> &mut Sort {
        match self.focus {
            Focus::Devices => &mut self.device_sort,
            Focus::QueuePairs => &mut self.qp_sort,
        }
    }

    fn sort_next(&mut self, by: isize) {
        let next = |count: usize, sort: Sort| match sort.column.checked_add_signed(by) {
            Some(column) if column < count => column,
            Some(_) => 0,
            None => count - 1,
        };
        match self.focus {
            Focus::Devices => self.device_sort = sort(&DEVICES, next(DEVICES.len(), self.device_sort)),
            Focus::QueuePairs => self.qp_sort = sort(&QPS, next(QPS.len(), self.qp_sort)),
        }
    }
}

fn sort<T>(columns: &[Column<T>], column: usize) -> Sort {
    Sort { column, is_ascending: columns.get(column).is_some_and(|column| column.is_name) }
}

fn sort_named<T>(columns: &[Column<T>], name: &str) -> Option<Sort> {
    let column = columns.iter().position(|column| column.name.eq_ignore_ascii_case(name))?;
    Some(sort(columns, column))
}

fn busiest<T>(columns: &[Column<T>]) -> Sort {
    sort_named(columns, "TX B/s").unwrap_or(Sort { column: 0, is_ascending: true })
}

/// Words that a filter finds, in small letters.
fn words_of_device(device: &Device) -> String {
    let Device { key, program, netdev, addresses, .. } = device;
    format!("{} {program} {} {netdev} {addresses}", key.pid, key.device).to_lowercase()
}

fn words_of_qp(qp: &QueuePair) -> String {
    let QueuePair { key, program, netdev, service, state, peer, way, .. } = qp;
    let qpn = key.qpn.unwrap_or_default();
    format!("{} {program} {} {netdev} {qpn:#08x} {qpn:#x} {qpn} {service} {state} {peer} {way}", key.pid, key.device)
        .to_lowercase()
}
