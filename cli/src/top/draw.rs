//! Draws the view: a line of title, the two tables or the details of one row, and a line of keys.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::{Cell as TableCell, Paragraph, Row as TableRow, Table, TableState, Wrap};

use super::cell::Cell;
use super::columns::{self, Column, DEVICES, QPS, Row};
use super::detail;
use super::state::{Focus, Sort, Top};
use super::style::{BOLD, CHOSEN, DIM, ERROR, TROUBLE};

/// Lower screens have one of the two tables.
const LOW: u16 = 12;

const HELP: &str = "\
q, Control-C     quit
Up, Down, k, j   choose a row; Page Up, Page Down, Home, End
Tab              devices or queue pairs
Enter            details of the row; Esc goes back
s, S             sort by the next or the previous column
r                reverse the order
/                filter: words that a row must have, of its process id,
                 program, device, interface, address, queue pair number,
                 type or state; Esc shows all again
a                counters that are 0 too, in the details
space            pause

B/s, pkt/s       bytes and packets per second, BTH to ICRC
WINDOW           packets that may be outstanding
RETRIES          times the requester went back and sent again
TIMEOUTS         ACK timeouts
RNR              RNR NAKs, sent and received: no receive was posted
NAKS             other NAKs, sent and received
DROPS            packets that were dropped, or not sent
                 Yellow numbers have grown since the last look.";

/// Keys, the most wanted first.
const KEYS: [&str; 9] = [
    "q quit",
    "? help",
    "Enter details",
    "/ filter",
    "s sort",
    "space pause",
    "Tab devices",
    "r reverse",
    "Up Down choose",
];
const KEYS_OF_DETAILS: [&str; 6] = ["q quit", "Esc back", "a all counters", "space pause", "Up Down scroll", "? help"];

/// Draws all.
pub(super) fn draw(frame: &mut Frame<'_>, top: &Top) {
    let [title, body, keys] =
        Layout::vertical([Constraint::Length(1), Constraint::Min(0), Constraint::Length(1)]).areas(frame.area());
    frame.render_widget(title_line(top), title);
    frame.render_widget(keys_line(top, keys.width), keys);
    if top.is_helping {
        let scroll = top.scrolled(HELP.lines().count(), body.height);
        frame.render_widget(Paragraph::new(HELP).scroll((scroll, 0)), body);
    } else if let Some(key) = &top.detail {
        detail::draw(frame, body, top, key);
    } else {
        tables(frame, body, top);
    }
}

fn tables(frame: &mut Frame<'_>, body: Rect, top: &Top) {
    let (devices, qps) = (top.devices(), top.qps());
    if devices.is_empty() {
        let words = match (top.sample(), &top.error) {
            (None, None) => "asking the devices",
            (None, Some(error)) => error,
            (Some(sample), _) if sample.devices.is_empty() => "no process of this network uses urxe",
            (Some(_), _) => "no device and no queue pair passes the filter; Esc shows all",
        };
        frame.render_widget(Paragraph::new(words).wrap(Wrap { trim: true }), body);
        return;
    }
    let wanted = u16::try_from(devices.len() + 1).unwrap_or(u16::MAX);
    let (above, between) = match (body.height < LOW, top.focus) {
        (false, Focus::QueuePairs) => (wanted.min(body.height / 3), 1),
        (false, Focus::Devices) => (wanted.min(body.height / 2), 1),
        (true, Focus::QueuePairs) => (0, 0),
        (true, Focus::Devices) => (body.height, 0),
    };
    let rooms = [Constraint::Length(above), Constraint::Length(between), Constraint::Min(0)];
    let [above, _, below] = Layout::vertical(rooms).areas(body);
    table(frame, above, top, Focus::Devices, &devices, &DEVICES);
    if qps.is_empty() {
        frame.render_widget(Line::styled("no queue pairs", DIM), below);
    } else {
        table(frame, below, top, Focus::QueuePairs, &qps, &QPS);
    }
}

fn title_line(top: &Top) -> Line<'static> {
    let mut spans = vec![Span::styled("urxe top", BOLD)];
    if top.is_paused {
        spans.push(Span::styled("  paused", TROUBLE));
    }
    if top.is_typing || !top.filter.is_empty() {
        let cursor = if top.is_typing { "_" } else { "" };
        spans.push(Span::styled(format!("  filter: {}{cursor}", top.filter), BOLD));
    }
    let Some(sample) = top.sample() else { return Line::from(spans) };
    if let Some(error) = &top.error {
        spans.push(Span::styled(format!("  {error}"), ERROR));
    }
    let count = |count: usize, what: &str| format!("  {count} {what}{}", if count == 1 { "" } else { "s" });
    spans.push(count(sample.devices.len(), "device").into());
    spans.push(count(sample.qps.len(), "queue pair").into());
    if sample.silent > 0 {
        let silent = format!("  {} more: of other users, or busy (root sees all)", sample.silent);
        spans.push(Span::styled(silent, DIM));
    }
    Line::from(spans)
}

/// Draws as many keys as there is room for.
fn keys_line(top: &Top, width: u16) -> Line<'static> {
    let keys: &[&str] = match (top.is_typing, top.is_helping, &top.detail) {
        (true, ..) => &["Enter keep", "Esc show all"],
        (_, true, _) => &["q quit", "Esc back", "Up Down scroll"],
        (.., Some(_)) => &KEYS_OF_DETAILS,
        (.., None) => &KEYS,
    };
    let mut line = String::new();
    for key in keys {
        let more = if line.is_empty() { (*key).to_owned() } else { format!("{line}  {key}") };
        if more.len() > usize::from(width) {
            break;
        }
        line = more;
    }
    Line::styled(line, DIM)
}

fn table<T: Row>(
    frame: &mut Frame<'_>,
    area: Rect,
    top: &Top,
    focus: Focus,
    rows: &[&T],
    columns: &'static [Column<T>],
) {
    let height = usize::from(area.height.saturating_sub(1));
    if height == 0 {
        return;
    }
    let chosen = top.chosen(focus, rows).unwrap_or_default();
    // Of thousands of rows only those on the screen are made.
    let first = (chosen + 1).saturating_sub(height);
    let shown = rows.get(first..rows.len().min(first + height)).unwrap_or_default();
    let cells: Vec<Vec<Cell>> =
        shown.iter().map(|row| columns.iter().map(|column| column.cell(&top.samples, row)).collect()).collect();
    let heads: Vec<String> =
        columns.iter().enumerate().map(|(index, column)| head(column, index, top.sort(focus))).collect();
    let widths: Vec<u16> = heads
        .iter()
        .enumerate()
        .map(|(index, head)| {
            let cells = cells.iter().filter_map(|row| row.get(index)).map(|cell| cell.to_string().chars().count());
            u16::try_from(cells.chain([head.len()]).max().unwrap_or(0)).unwrap_or(u16::MAX)
        })
        .collect();
    let fitting = columns::fit(columns, &widths, area.width);
    let aligned = |column: &Column<T>, text: String| {
        let text = Text::from(text);
        if column.is_number { text.right_aligned() } else { text }
    };
    let header = fitting.iter().map(|&index| aligned(&columns[index], heads[index].clone()));
    let header = TableRow::new(header).style(BOLD.add_modifier(Modifier::UNDERLINED));
    let rows = shown.iter().zip(&cells).map(|(row, cells)| {
        TableRow::new(fitting.iter().map(|&index| {
            let (cell, column) = (&cells[index], &columns[index]);
            TableCell::new(aligned(column, cell.to_string())).style(style(top, column.trouble, *row, cell))
        }))
    });
    let constraints = fitting.iter().map(|&index| Constraint::Length(widths[index]));
    let highlight = if top.focus == focus { CHOSEN } else { Style::new() };
    let table =
        Table::new(rows, constraints).header(header).column_spacing(columns::SPACING).row_highlight_style(highlight);
    let mut state = TableState::new().with_selected(chosen - first);
    frame.render_stateful_widget(table, area, &mut state);
}

/// Style of a cell.
fn style(top: &Top, trouble: &[&str], row: &impl Row, cell: &Cell) -> Style {
    match cell {
        Cell::Text(text) if matches!(text.as_str(), "ERR" | "SQE") => ERROR,
        _ if !trouble.is_empty() && top.rate(row.key(), trouble).is_some_and(|rate| rate > 0.0) => TROUBLE,
        _ => Style::new(),
    }
}

/// The name of a column, with the direction if the table is sorted by it.
fn head<T>(column: &Column<T>, index: usize, sort: Sort) -> String {
    let mark = match (index == sort.column, sort.is_ascending) {
        (false, _) => "",
        (true, true) => "^",
        (true, false) => "v",
    };
    format!("{}{mark}", column.name)
}
